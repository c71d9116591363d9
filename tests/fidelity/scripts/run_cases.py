"""Runs cases one after the other, each from the same seed, and writes what each gave to OUT/<case>.npz.

    python run_cases.py --cases adam,dropout --out DIRECTORY

Without `--cases` it runs them all. A case that raises leaves OUT/<case>.error and the next one runs.
"""

import argparse
import pathlib
import sys
import traceback

import after_fit  # noqa: F401  (each of these fills the list of cases)
import data_forms  # noqa: F401
import fit_options  # noqa: F401
import fit_outside  # noqa: F401
import inner_functions  # noqa: F401
import keras_2_only  # noqa: F401
import loops  # noqa: F401
import loops_eager  # noqa: F401
import loops_in_turn  # noqa: F401
import loops_outside  # noqa: F401
import losses  # noqa: F401
import models  # noqa: F401
import numpy as np
import optimizers  # noqa: F401
import random_numbers  # noqa: F401
import rows_together  # noqa: F401
import sessions  # noqa: F401
import several_sizes  # noqa: F401
from recording import CASES
from tensorflow import keras


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES))
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "names.txt").write_text("\n".join(CASES))
    failed = [name for name in arguments.cases if not succeeds(name, arguments.out)]
    return 1 if failed else 0


def succeeds(name: str, out: pathlib.Path) -> bool:
    keras.backend.clear_session()
    keras.utils.set_random_seed(7)
    print(f"case {name}", flush=True)
    try:
        results = CASES[name]()
    except Exception:
        (out / f"{name}.error").write_text(traceback.format_exc())
        traceback.print_exc()
        return False
    # Whole or not at all: some are kept.
    np.savez(out / f"{name}.part.npz", **results)
    (out / f"{name}.part.npz").rename(out / f"{name}.npz")
    return True


if __name__ == "__main__":
    sys.exit(main())
