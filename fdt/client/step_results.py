"""Outputs of steps that a script holds results of."""

from weakref import WeakValueDictionary

from fdt.errors import StepError
from fdt.transport.blobs import Buffer


class Result:
    """The outputs of one step, once they have arrived."""

    def __init__(self) -> None:
        self.outputs: Buffer | None = None
        # The reason if there will be none.
        self.error: StepError | None = None


class StepResults:
    """The results that the script still holds, by the number of the step since the job's beginning."""

    def __init__(self) -> None:
        self._results: WeakValueDictionary[int, Result] = WeakValueDictionary()

    def expect(self, step: int) -> Result:
        """Returns the place for the outputs of a step."""
        result = self._results[step] = Result()
        return result

    def awaited(self, step: int) -> Result | None:
        """Returns the place for the outputs of a step; None if the script holds none, or has them: a repeated step sends its
        outputs again."""
        result = self._results.get(step)
        return None if result is None or result.outputs is not None else result

    def fail_from(self, first: int, error: StepError) -> None:
        """Gives up the outputs that step `first` and later ones have not sent."""
        for step, result in list(self._results.items()):
            if step >= first and result.outputs is None:
                result.error = error
