"""Chooses how many steps a worker makes in one call: as many as take a tenth of a second."""

# Short for a caller that waits for the last step, long compared to the Python overhead of a call.
_CALL_S = 0.1


class StepsPerCall:
    """One worker's number of steps per call. Begins with one, since the first step may take long; at most doubles per call."""

    def __init__(self) -> None:
        self.number = 1

    def note(self, number: int, seconds: float) -> None:
        """Adjusts the number to the duration of a call.

        Args:
            number: How many steps it made.
            seconds: How long they took.
        """
        wanted = self.number * 2 if seconds <= 0 else int(_CALL_S * number / seconds)
        self.number = max(1, min(wanted, 2 * number))
