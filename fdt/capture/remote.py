"""Keeps traced steps and the script's variables on the pool, and fetches values when the script looks at them."""

import contextlib
import threading
from collections.abc import Iterator
from weakref import WeakSet

import tensorflow as tf

from fdt.capture.step.traced_step import MetricResult, TracedStep
from fdt.capture.variable_access import VariableAccess
from fdt.capture.variable_versions import VariableVersions
from fdt.client.answers import Answer, Drain
from fdt.client.job import Job
from fdt.client.session import Session
from fdt.client.state import SharedState
from fdt.errors import FdtError, StepError
from fdt.v1 import job_pb2, program_pb2

# If the script looks at more variables than this between two steps, all are fetched at once.
_FEW = 3
METRICS, ALL = job_pb2.Drain.WHAT_METRICS, job_pb2.Drain.WHAT_ALL


def as_tensorflow_error(error: StepError) -> Exception:
    """Returns the error that plain python would have raised."""
    raised: Exception = tf.compat.v1.errors.exception_type_from_error_code(error.step.code)(None, None, str(error))
    return raised


class RemoteStep:
    """One traced step and what the pool holds of its variables.

    Attributes:
        places: Places of its variables, by their ids.
        written: Ids of the variables that it may change.
        metrics: Ids of the variables that are summed over workers.
        returns_metrics: Whether this machine computes its outputs from metrics.
    """

    def __init__(self, traced: TracedStep):
        self.traced = traced
        self.program = -1
        self.state = SharedState(traced.program, traced.variables)
        self._job: Job | None = None
        self.places = {id(variable): place for place, variable in enumerate(traced.variables)}
        self.written = {id(variable) for variable in traced.variables if traced.writes(variable)}
        described = traced.program.variables
        self.metrics = {v for v, place in self.places.items() if described[place].role == program_pb2.ROLE_METRIC}
        self.returns_metrics = any(isinstance(output, MetricResult) for output in traced.outputs())

    def begin(self, job: Job) -> None:
        """Loads the program into a job; a job that replaces a lost one holds nothing yet."""
        if self._job is not job:
            self._job, self.state = job, SharedState(self.traced.program, self.traced.variables)
            self.program = job.load(self.traced.program, self)


class RemoteVariables:
    """The variables of all steps: their newest values stay on the pool until the script looks at them.

    Threads of the script's may look at them at any time; one at a time uses the job.
    """

    def __init__(self, session: Session, touch: VariableAccess):
        """
        Args:
            session: The session whose job runs the steps.
            touch: Reports when the script reads variables.
        """
        self._session, self._touch = session, touch
        self._versions: VariableVersions[RemoteStep] = VariableVersions()
        # Of the variables that the last step left on the pool: those that the script has looked at, those that came home with
        # them; and at how many it looked the last time that it did so.
        self._looked, self._unasked, self._looked_before = set[int](), set[int](), 0
        self._job: Job | None = None
        self._watched: WeakSet[RemoteStep] = WeakSet()
        self._lock = threading.RLock()
        touch.listen(self._touched)

    def job(self) -> Job:
        """Returns the job; a new one if the last has failed and the script has received its error."""
        if not self._versions.away():
            self._session.renew()
        job = self._session.job()
        if job is not self._job:
            self._job = job
            self._versions.forget_pool()
        return job

    def enter(self, job: Job, step: RemoteStep) -> None:
        """Brings a step's variables on the pool to their newest version."""
        step.begin(job)
        if step not in self._watched:
            self._watched.add(step)
            self._touch.watch(step.traced.variables)
        missing = self._versions.missing(step, step.places, step.metrics)
        for other, variables in missing.from_steps.items():
            at_home = variables & missing.maybe_changed
            if at_home:
                job.assign(other.program, *other.state.changes(at_home))
            here, there = ([s.places[v] for v in sorted(variables)] for s in (step, other))
            job.move(step.program, here, other.program, there)
            # Either step may change its copy without the script receiving the values.
            step.state.forget(here)
            other.state.forget([other.places[v] for v in variables - at_home])
        if missing.from_script:
            job.assign(step.program, *step.state.changes(missing.from_script))

    def ran(self, step: RemoteStep) -> None:
        """Records that a step was sent, which changes the variables that it writes."""
        self._versions.written(step, step.written)
        self._looked_before = len(self._looked) or self._looked_before
        self._looked, self._unasked = set(), set()

    def forget_pool(self) -> None:
        """Records that the pool's values are lost: the script has the values that it read last."""
        self._versions.forget_pool()

    def changed_at_home(self, step: RemoteStep) -> None:
        """Records that the script's values of a step's variables now differ from the pool's."""
        self._versions.changed_at_home(step.places)

    def metrics_of(self, job: Job, step: RemoteStep) -> Answer:
        """Waits for a step, and fetches its metrics."""
        return self._metrics_home(step, job.request(step.program, METRICS))

    def come_home(self) -> None:
        """Fetches the newest values of all variables."""
        with self.told():
            self.fetch()

    def fetch(self) -> None:
        """See `come_home`; a step's error is the pool's."""
        with self.busy():
            away = self._versions.away()
            if away:
                self._bring_home(self._session.job(), away)

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Raises a step's error as TensorFlow's, with all values as they were before that step. After a job's error the
        script has the values that it read last.
        """
        try:
            yield
        except StepError as error:
            with self.busy():
                self.leave_out_failed_step()
            raise as_tensorflow_error(error) from None
        except FdtError:
            self.forget_pool()
            raise

    def leave_out_failed_step(self) -> None:
        """Gives the script all values as they were before the step that failed."""
        self._session.job().leave_out_failed_step()
        self.fetch()
        # Values that were being sent when the error arrived may have been sent only in part.
        self._versions.forget_pool()
        for step in self._watched:
            step.state.forget(range(len(step.traced.variables)))

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """Within the context other threads' accesses wait, and this one's are ours, not the script's."""
        with self._lock, self._touch.paused():
            yield

    def _touched(self, variables: set[int]) -> None:
        """Fetches variables that the script is about to read or change."""
        with self._lock:
            away = self._versions.away(variables)
            self._looked |= variables & self._unasked.union(*away.values())
            if away:
                with self.told():
                    job = self._session.job()
                    self._bring_home(job, self._fetched(job, away))
            self._versions.changed_at_home(variables)

    def _fetched(self, job: Job, away: dict[RemoteStep, set[int]]) -> dict[RemoteStep, set[int]]:
        """Returns what is fetched, of variables on the pool, when the script looks at some: these, or all of them."""
        everything = self._versions.away()
        is_small = all(job.is_small(step.program, _places(step, each)) for step, each in everything.items())
        if not is_small and max(len(self._looked), self._looked_before) <= _FEW:
            return away
        # Keras itself looks at metrics.
        self._unasked.update(*(variables - step.metrics for step, variables in everything.items()))
        return everything

    def _bring_home(self, job: Job, away: dict[RemoteStep, set[int]]) -> None:
        # All requests are sent before the first answer is waited for.
        metrics, others = [], []
        for step, variables in away.items():
            if variables <= step.metrics:
                metrics.append((step, job.request(step.program, METRICS)))
            else:
                others.append((step, variables, job.request(step.program, ALL, _places(step, variables))))
        for step, drain in metrics:
            self._metrics_home(step, drain)
        for step, variables, drain in others:
            self._accept(step, variables, drain)

    def _metrics_home(self, step: RemoteStep, drain: Drain) -> Answer:
        # Another step, or the script, may have newer values of other metrics by now.
        return self._accept(step, self._versions.away(step.metrics).get(step, set()), drain)

    def _accept(self, step: RemoteStep, variables: set[int], drain: Drain) -> Answer:
        answer = drain.result()
        step.state.accept(answer.state, answer.contents, variables)
        self._versions.came_home(variables)
        return answer


def _places(step: RemoteStep, variables: set[int]) -> list[int]:
    return sorted(step.places[variable] for variable in variables)
