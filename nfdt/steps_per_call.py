"""Chooses how many steps a worker makes in one call: as many as take a tenth of a second."""

# Short to whoever waits for the last of them, long beside what Python does for a call.
_CALL_S = 0.1


class StepsPerCall:
    """One worker's. It begins with one step, which may take long for once, and doubles at most from call to call."""

    def __init__(self) -> None:
        self.number = 1

    def note(self, number: int, seconds: float) -> None:
        """Takes note of a call.

        Args:
            number: Of its steps.
            seconds: That these took.
        """
        wanted = self.number * 2 if seconds <= 0 else int(_CALL_S * number / seconds)
        self.number = max(1, min(wanted, 2 * number))
