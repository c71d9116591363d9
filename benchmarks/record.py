"""What a benchmark has measured, and where: kept as raw JSON, which no commit has, with the tables made from it beside it."""

import datetime
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from processes import ROOT, RunFailedError

RESULTS = ROOT / "benchmarks" / "results"
Content = dict[str, Any]
Measure = Callable[[], dict[str, Any]]


def heading(content: Content) -> str:
    """Returns how, when and on what the figures came about."""
    machine = content["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    return (
        f"`{content['command'].strip()}` on {content['date']}: {machine['cores']} cores, {machine['processor']}, "
        f"{machine['memory_gb']} GB. {versions}."
    )


class Record:
    """All that was measured, written after every measurement so that nothing is lost.

    Args:
        script: The benchmark's file name without its ending; its results bear the same name.
        settings: Its options.
        packages: Those whose versions matter; one that is not installed is left out.
        markdown: Makes the tables from the content.
        keep: False writes nothing.
        resume: Whether to go on with what is written already, if it was measured with the same settings.

    Raises:
        SystemExit: It was not.
    """

    def __init__(
        self,
        script: str,
        settings: dict[str, Any],
        packages: Sequence[str],
        markdown: Callable[[Content], str],
        keep: bool = True,
        resume: bool = False,
    ) -> None:
        self._output = RESULTS / script if keep else None
        self._markdown = markdown
        self.content: Content = {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": f"python benchmarks/{script}.py " + " ".join(sys.argv[1:]),
            "settings": settings,
            "machine": _machine(),
            "versions": _versions(packages),
            "measurements": [],
        }
        if resume and self._output is not None and self._output.with_suffix(".json").exists():
            self._resume(json.loads(self._output.with_suffix(".json").read_text()))

    def _resume(self, before: Content) -> None:
        for name in ("settings", "machine", "versions"):
            if before[name] != self.content[name]:
                raise SystemExit(
                    f"What is written already has other {name}: {before[name]}. Received: {self.content[name]}"
                )
        self.content = before

    def has(self, kind: str, **labels: Any) -> bool:
        """Whether this was measured, and did not fail."""
        wanted = {"kind": kind, **labels}
        return any("failed" not in entry and wanted.items() <= entry.items() for entry in self.content["measurements"])

    def add(self, kind: str, measure: Measure, **labels: Any) -> dict[str, Any]:
        """Takes one measurement; one that fails is kept as a failure and the others go on.

        Returns:
            The entry, with `failed` in it if it did.
        """
        where = " ".join(str(label) for label in labels.values())
        try:
            values = measure()
            print(f"{kind} {where}: {_short(values)}", flush=True)
        except RunFailedError as error:
            # What a process printed holds this machine's paths: shown here, not kept.
            values = {"failed": str(error).splitlines()[0].replace(f"{ROOT}/", "")}
            print(f"{kind} {where}: failed: {error}", flush=True)
        entry = {"kind": kind, **labels, "load_1min": os.getloadavg()[0], **values}
        self.content["measurements"].append(entry)
        self.write()
        return entry

    def markdown(self) -> str:
        return self._markdown(self.content)

    def write(self) -> None:
        if self._output:
            self._output.parent.mkdir(parents=True, exist_ok=True)
            self._output.with_suffix(".json").write_text(json.dumps(self.content, indent=1) + "\n")
            self._output.with_suffix(".md").write_text(self.markdown())

    def failed(self) -> bool:
        return any("failed" in entry for entry in self.content["measurements"])


def _short(values: dict[str, Any]) -> str:
    """Returns the numbers of a measurement in one line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items() if isinstance(value, int | float))


def _machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"processor": model, "cores": os.cpu_count(), "memory_gb": round(memory / 1e9, 1)}


def _versions(packages: Sequence[str]) -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in packages:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
