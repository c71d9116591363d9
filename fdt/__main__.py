"""`python -m fdt`: the same as the command `fdt`."""

import sys

from fdt.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
