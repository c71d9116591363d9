"""How many steps a second does a GPU make? Plain Keras, one rank, two that share it, asynchronous workers; by XLA or not.

    python benchmarks/gpu.py               # some five minutes on a machine with a GPU

All of them are alive at the same time and take turns, an epoch each (`models/in_turn.py`): their start takes longer than what
is measured. With one GPU, two ranks share it: no peer could be faster, and the figure shows what sharing costs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import ROOT

from fdt.base.gpus import num_gpus

MODELS = ("mlp", "cnn", "resnet34", "vit", "embedding")
PLAIN = "plain Keras"


def sides() -> dict[str, list[str]]:
    """Returns the command of each side, without the script."""
    fdt = [sys.executable, "-m", "fdt", "run"]
    return {
        PLAIN: [sys.executable],
        "sync 1": [*fdt, "--mode", "sync", "--workers", "1"],
        "sync 2": [*fdt, "--mode", "sync", "--workers", "2"],
        "async 1": [*fdt, "--mode", "async", "--workers", "1"],
        "async 2": [*fdt, "--mode", "async", "--workers", "2"],
    }


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--sides", nargs="+", default=list(sides()))
    parser.add_argument("--logs", type=Path, help="a folder for what the sides print")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds after which all sides end")
    parser.add_argument("--compiled", nargs="*", default=list(sides()), help="the sides that run compiled by XLA, too")
    options = parser.parse_args()
    if not num_gpus():
        print("This machine has no NVIDIA GPU: nothing was measured.")
        return
    chosen = [*((side, False) for side in options.sides), *((side, True) for side in options.compiled)]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        logs = options.logs or place
        logs.mkdir(exist_ok=True, parents=True)
        running = [_start(side, xla, place, logs, len(chosen), options) for side, xla in chosen]
        _wait(dict(zip(chosen, running, strict=True)), place, options)
        results = place / "results.jsonl"
        found = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
        if options.logs:
            (options.logs / "results.jsonl").write_text("".join(json.dumps(each) + "\n" for each in found))
    print(table(found, options.models, chosen))


def _wait(running: "dict[tuple[str, bool], subprocess.Popen[bytes]]", place: Path, options: argparse.Namespace) -> None:
    """Waits until all sides have ended; the others do not wait for one that failed."""
    end_s = time.monotonic() + options.limit
    while any(process.poll() is None for process in running.values()) and time.monotonic() < end_s:
        for (side, xla), process in running.items():
            if process.poll():
                for model in options.models:
                    (place / f"{model}.{_name(side, xla)}.ready").touch()
        time.sleep(0.5)
    for process in running.values():
        process.terminate()


def _start(
    side: str, xla: bool, place: Path, logs: Path, num_sides: int, options: argparse.Namespace
) -> "subprocess.Popen[bytes]":
    name = _name(side, xla)
    script = [str(ROOT / "benchmarks" / "models" / "in_turn.py"), str(place), name, "--sides", str(num_sides)]
    script += ["--rounds", str(options.rounds), "--batch-size", str(options.batch_size), "--models", *options.models]
    script += ["--compile"] if xla else []
    script += ["--steps", str(options.steps)] if options.steps else []
    # The plain processes must leave room for each other, too.
    environment = {**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "true", "PYTHONUNBUFFERED": "1"}
    with open(logs / f"{name}.log", "wb") as log:
        return subprocess.Popen([*sides()[side], *script], cwd=place, env=environment, stdout=log, stderr=log)


def _name(side: str, xla: bool) -> str:
    return f"{side.replace(' ', '_')}{'_xla' if xla else ''}"


def table(found: list[dict[str, object]], models: list[str], chosen: list[tuple[str, bool]]) -> str:
    """Returns medians of steps a second, and medians of the ratio to plain Keras in the same round."""
    rates = {(each["side"], each["model"]): each["rates"] for each in found}
    lines = [f"| | {' | '.join(models)} |", f"|---{'|---' * len(models)}|"]
    for side, xla in chosen:
        cells = []
        for model in models:
            own, plain = rates.get((_name(side, xla), model)), rates.get((_name(PLAIN, xla), model))
            cells.append("failed" if not own else _cell(own, plain))  # type: ignore[arg-type]
        lines.append(f"| {side}{', XLA' if xla else ''} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(own: list[float], plain: list[float] | None) -> str:
    said = f"{statistics.median(own):.0f}"
    if not plain or own is plain:
        return said
    ratios = [mine / theirs for mine, theirs in zip(own, plain, strict=False)]
    return f"{said} ({statistics.median(ratios):.2f}, {min(ratios):.2f}-{max(ratios):.2f})"


if __name__ == "__main__":
    main()
