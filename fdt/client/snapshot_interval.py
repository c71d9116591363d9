"""Chooses the interval between snapshots: long while nothing fails, the cheapest one in all once faults occur."""

import collections
import math

# Largest part of the workers' time that pauses for snapshots take while nothing fails, and where faults are frequent.
_SHARE, _MOST_SHARE = 0.02, 0.2
# Shortest interval, since a snapshot's cost at the client and the pool's disk, besides the pause, is not counted.
_LEAST_S = 0.25
# Number of newest faults for the mean time between faults; few, so that the mean soon grows again.
_FAULTS = 5


class SnapshotInterval:
    """The interval between snapshots of one job.

    With a pause of c for each and a fault every M, snapshots every √(2 c M) lose the least to both: to pauses, and to steps
    that are made again (J. W. Young, A First Order Approximation to the Optimum Checkpoint Interval, CACM 17(9), 1974).
    """

    def __init__(self, usual_s: float, now_s: float) -> None:
        """
        Args:
            usual_s: The interval while nothing fails.
            now_s: The time when the job begins, by the same clock as all other times here.
        """
        self._usual_s = usual_s
        # Times of the newest faults, after that of the job's beginning or of the fault before them.
        self._moments = collections.deque([now_s], _FAULTS + 1)

    def lost(self, now_s: float) -> None:
        """Records a fault."""
        self._moments.append(now_s)

    def interval_s(self, pause_s: float, now_s: float) -> float:
        """Returns the seconds to the next snapshot.

        Args:
            pause_s: The time for which the last snapshot paused the workers.
            now_s: The present time.
        """
        usual_s = max(self._usual_s, pause_s / _SHARE)
        num_faults = len(self._moments) - 1
        if not num_faults:
            return usual_s
        between_s = (now_s - self._moments[0]) / num_faults
        return min(usual_s, max(math.sqrt(2 * pause_s * between_s), pause_s / _MOST_SHARE, _LEAST_S))
