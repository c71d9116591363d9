"""Collects what `fdt check` finds in a script."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """A place where the script trains.

    Attributes:
        where: File and line.
        what: The call.
        lines: Description of the training.
        refusal: Why it cannot be distributed; None if it can.
        trains: Whether anything is trained there at all.
    """

    where: str
    what: str
    lines: tuple[str, ...] = ()
    refusal: str | None = None
    trains: bool = True


class Findings:
    """All findings, each once, in the order in which the script reached them."""

    def __init__(self) -> None:
        self._counts: dict[Finding, int] = {}

    def add(self, finding: Finding) -> None:
        """Adds a finding, or counts it once more."""
        self._counts[finding] = self._counts.get(finding, 0) + 1

    def refuse(self, where: str, what: str, reason: str) -> None:
        """Adds training that cannot be distributed."""
        self.add(Finding(where, what, refusal=reason))

    def refusals(self) -> list[Finding]:
        """Returns the findings that cannot be distributed."""
        return [finding for finding in self._counts if finding.refusal]

    @property
    def passed(self) -> bool:
        """Whether there is training, and all of it can be distributed."""
        return any(finding.trains for finding in self._counts) and not self.refusals()

    def text(self, whole: bool = True) -> str:
        """Returns the text to print: a paragraph for each finding, and a conclusion.

        Args:
            whole: Whether the script ran to its end.
        """
        paragraphs = []
        for finding, count in self._counts.items():
            times = f" ({count} times)" if count > 1 else ""
            verdict = "refused" if finding.refusal else "distributed" if finding.trains else "stays here"
            lines = [finding.refusal] if finding.refusal else finding.lines
            paragraphs.append("\n  ".join([f"{finding.where}: {finding.what}{times}: {verdict}", *lines]))
        return "\n\n".join([*paragraphs, self._conclusion(whole)])

    def _conclusion(self, whole: bool) -> str:
        so_far = "" if whole else ", as far as it came"
        trainings = [finding for finding in self._counts if finding.trains]
        if not trainings:
            return f"No training step was found{so_far}: nothing would be distributed."
        # A step traced in two forms is still in one place.
        refused, count = (len({finding.where for finding in found}) for found in (self.refusals(), trainings))
        places = f"{count} place{'' if count == 1 else 's'}"
        if refused:
            return f"The script trains in {places}{so_far}; {refused} cannot be distributed."
        return f"The script trains in {places}{so_far}; all of it would be distributed."
