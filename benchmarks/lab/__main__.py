"""`python benchmarks/lab`: see `command.py`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # As a script's, this folder is on the path; but what is in it is a package, and stands on the modules beside it.
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    from lab.command import main

    sys.exit(main())
