"""How one run of the case script serves many tests."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from tests.helpers.processes import Finished, run_fdt, run_python

SCRIPT = Path(__file__).parent / "scripts" / "run_cases.py"

_START_S = 90.0
_CASE_S = 25.0
_RESTARTS = 3


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one case gave: results, or the reason why there are none."""

    results: dict[str, np.ndarray]
    error: str | None = None

    def expect(self) -> dict[str, np.ndarray]:
        assert self.error is None, self.error
        return self.results


def run_cases(names: Sequence[str], num_workers: int, mode: str, out: Path, keras: int = 3) -> dict[str, Outcome]:
    """Runs cases in one process, with one generation of Keras; 0 workers is plain python.

    A case that takes the process with it costs that case: the process is started again with the ones after it.
    """
    outcomes: dict[str, Outcome] = {}
    todo = list(names)
    for _ in range(1 + _RESTARTS):
        finished = _run(todo, num_workers, mode, out, keras)
        outcomes.update(written_cases(todo, out))
        todo = [name for name in todo if name not in outcomes]
        if not todo:
            return outcomes
        lost = todo.pop(0)
        outcomes[lost] = Outcome({}, f"the process ended in case {lost}\n{finished.describe()}")
    reason = f"not run: the process ended {1 + _RESTARTS} times before this case; last in case {lost}"
    return outcomes | {name: Outcome({}, reason) for name in todo}


def _run(names: Sequence[str], num_workers: int, mode: str, out: Path, keras: int) -> Finished:
    environment = {"TF_USE_LEGACY_KERAS": "1"} if keras == 2 else {}
    arguments = ("--cases", ",".join(names), "--out", str(out))
    out.mkdir(parents=True, exist_ok=True)
    limit_s = _START_S + _CASE_S * len(names)
    if num_workers == 0:
        return run_python(SCRIPT, *arguments, limit_s=limit_s, cwd=out, **environment)
    return run_fdt(SCRIPT, *arguments, workers=num_workers, mode=mode, limit_s=limit_s, cwd=out, **environment)


def written_cases(names: Sequence[str], out: Path) -> Iterator[tuple[str, Outcome]]:
    """Returns what a process that ran cases has written of them."""
    for name in names:
        results, error = out / f"{name}.npz", out / f"{name}.error"
        if results.exists():
            with np.load(results) as arrays:
                yield name, Outcome({key: arrays[key] for key in arrays.files})
        elif error.exists():
            yield name, Outcome({}, f"case {name} raised\n{error.read_text()}")
