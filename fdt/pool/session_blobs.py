"""Moves the blobs that workers write into the pool's store, and keeps those of snapshots for the session's next job."""

from collections.abc import Sequence

from fdt.errors import ProtocolError
from fdt.pool.host_links import HostLinks
from fdt.pool.hosts import OwnHost
from fdt.pool.worker_links import WorkerLinks
from fdt.transport.blob_store import BlobStore
from fdt.v1 import blobs_pb2
from fdt.worker.processes import Processes


class SessionBlobs:
    """The blobs of workers and snapshots in the pool's store; its methods may be called from any thread."""

    def __init__(
        self, store: BlobStore, processes: Processes, hosts: HostLinks, workers: WorkerLinks, most: int
    ) -> None:
        """
        Args:
            store: The pool's store.
            processes: The worker processes of the pool's own machine.
            hosts: The pool's hosts.
            workers: The pool's workers.
            most: The most blobs that are kept for one session.
        """
        self._store, self._processes, self._hosts, self._workers, self._most = store, processes, hosts, workers, most

    def adopt(self, worker: str, refs: Sequence[blobs_pb2.BlobRef], owner: str) -> None:
        """Moves blobs from the folder of a worker of this machine into the store.

        Args:
            worker: The worker that has reported the blobs.
            refs: The blobs.
            owner: The person whose job it serves, who then owns the blobs; "" for the operator.

        Raises:
            ProtocolError: A file differs from what the worker reported.
        """
        folder = self._processes.folder(worker)
        if not refs or not isinstance(self._workers.host_of(worker), OwnHost):
            return
        try:
            for ref in refs:
                self._store.adopt(ref, folder, owner)
        except ProtocolError:
            # A missing folder was removed with its worker, perhaps just now. Its end is reported elsewhere.
            if folder.exists():
                raise

    def keep(self, session: bytes, refs: Sequence[blobs_pb2.BlobRef]) -> None:
        """Keeps the blobs of a snapshot for a session's next job.

        Raises:
            CapacityError: The session has too many blobs.
        """
        self._store.use(_user(session), refs, self._most)
        for ref in refs:
            # A blob that was lost with its worker's folder is noticed when the next job needs it.
            if self._store.has(ref):
                self._store.seal(ref)

    def let_go(self, session: bytes, refs: Sequence[blobs_pb2.BlobRef] | None = None) -> None:
        """Deletes a session's snapshots: these blobs, or all if None."""
        self._hosts.drop(self._store.release(_user(session), refs))


def _user(session: bytes) -> str:
    """Returns the name under which a session uses blobs."""
    return f"session {session.hex()}"
