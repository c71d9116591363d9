"""Chooses how often a snapshot is taken: seldom while nothing fails, as often as it pays once something does."""

import collections
import math

# A snapshot keeps workers from their steps for this part of the time, at most, while nothing fails; and for this part where
# faults are frequent.
_SHARE, _MOST_SHARE = 0.02, 0.2
# What a snapshot costs beside the pause, at the client and the pool's disk, is not counted; so not more often than this.
_LEAST_S = 0.25
# Faults that the mean time between two is taken of: the newest, so that it soon grows again.
_FAULTS = 5


class SnapshotInterval:
    """Snapshots of one job.

    With a pause of c for each and a fault every M, snapshots every √(2 c M) lose the least to both: to pauses, and to steps
    that are made again (J. W. Young, A First Order Approximation to the Optimum Checkpoint Interval, CACM 17(9), 1974).
    """

    def __init__(self, usual_s: float, now_s: float) -> None:
        """
        Args:
            usual_s: Between two, while nothing fails.
            now_s: When the job begins, by the clock of all other times here.
        """
        self._usual_s = usual_s
        # The beginning, or the fault before them, and the newest faults.
        self._moments = collections.deque([now_s], _FAULTS + 1)

    def lost(self, now_s: float) -> None:
        """Records a fault."""
        self._moments.append(now_s)

    def interval_s(self, pause_s: float, now_s: float) -> float:
        """Returns the seconds to the next snapshot.

        Args:
            pause_s: For which the last kept workers from their steps.
            now_s: The moment.
        """
        usual_s = max(self._usual_s, pause_s / _SHARE)
        num_faults = len(self._moments) - 1
        if not num_faults:
            return usual_s
        between_s = (now_s - self._moments[0]) / num_faults
        return min(usual_s, max(math.sqrt(2 * pause_s * between_s), pause_s / _MOST_SHARE, _LEAST_S))
