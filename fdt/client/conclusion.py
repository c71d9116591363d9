"""Ends `fdt verify`: prints the verdict, or hands it to the first of two runs."""

from collections.abc import Callable

from fdt.client.report import say
from fdt.client.verification import InDouble, Verdict, Verification
from fdt.script.second_run import SecondRun


class Conclusion:
    """Reports what `fdt verify` has compared, once the session is over."""

    def __init__(self, second: SecondRun | None = None, tell: Callable[[str], None] | None = None, num_steps: int = 0):
        """
        Args:
            second: Runs the script in double precision.
            tell: Receives the result of this run in double precision; None if this run does not compute so.
            num_steps: Number of steps of the first run, if this is the second one.
        """
        self._second, self._tell, self._num_steps = second, tell, num_steps

    def status(self, verification: Verification) -> int:
        """Prints the verdict, or passes it to the first run; returns the exit status."""
        if self._tell is not None:
            if verification.steps:
                self._tell(verification.shown_in_double(self._num_steps).text())
            return 0
        verdict, lines = verification.conclusion(self._in_double(verification))
        for line in lines:
            say(line)
        return verdict.value

    def _in_double(self, verification: Verification) -> InDouble | None:
        if self._second is None or not verification.steps or verification.within_tolerance:
            return None
        say("making these steps once more in double precision")
        answer = self._second.ask(str(len(verification.steps)))
        if not answer:
            return InDouble(Verdict.UNPROVEN, f"the script does not run: {self._second.last_words()}")
        return InDouble.of(answer)
