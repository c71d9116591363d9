"""Replays what `fdt serve --record-events FILE` has written: `python -m tests.helpers.replay FILE`."""

import argparse
import dataclasses
import json
import types
from pathlib import Path
from typing import Any

from fdt.base.config import Timing
from fdt.base.limits import Limits
from fdt.errors import FailedStep
from fdt.pool.event_log import encode
from fdt.pool.state import events
from fdt.pool.state.entities import Job, JobState
from fdt.pool.state.pool_state import PoolState

_KINDS = {kind.__name__: kind for kind in vars(events).values() if dataclasses.is_dataclass(kind)}
_KINDS |= {kind.__name__: kind for kind in (Job, Timing, Limits, FailedStep)}


def replay(path: Path) -> PoolState:
    """Tells a new state all that was recorded; asserts that it answers as the recorded one did."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    began, told = lines[0], [line for line in lines[1:] if "event" in line]
    counts = {(mode, workers): number for mode, workers, number in (e["processes"] for e in lines if "processes" in e)}

    def processes(mode: str) -> Any:
        return lambda num_workers: counts[mode, num_workers]

    placing: Any = began["placing"] and types.SimpleNamespace(**began["placing"])
    state = PoolState(
        began["num_workers"],
        {mode: processes(mode) for mode in began["modes"]},
        _decode(began["timing"]),
        began["max_jobs"],
        _decode(began["limits"]),
        [_decode(job) for job in began["before"]],
        placing,
    )
    for number, line in enumerate(told, 1):
        answered = encode(list(state.handle(_decode(line["event"]))))
        assert answered == line["instructions"], f"event {number}: {line['event']}"
    return state


def _decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_decode(each) for each in value)
    if not isinstance(value, dict):
        return value
    if "bytes" in value:
        return bytes.fromhex(value["bytes"])
    if "" not in value:
        return {name: _decode(each) for name, each in value.items()}
    kind = _KINDS[value[""]]
    fields = {name: _decode(each) for name, each in value.items() if name}
    if kind is Job:
        fields |= {"state": JobState(fields["state"]), "joined": set(fields["joined"]), "closed": set(fields["closed"])}
    return kind(**fields)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    state = replay(parser.parse_args().file)
    print(*(f"{job.name}: {job.state} {job.reason}".rstrip() for job in state.jobs.values()), sep="\n")
