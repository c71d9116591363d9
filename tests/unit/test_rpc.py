"""Errors to gRPC statuses and back; who may listen where."""

import types
from pathlib import Path
from typing import Any

import grpc
import pytest

from fdt import errors
from fdt.base.config import Timing
from fdt.base.limits import DEFAULT
from fdt.errors import FdtError, PoolError, UsageError
from fdt.transport import rpc, statuses
from fdt.transport.rate_limits import RateLimiter


def tree(base: type[FdtError] = FdtError) -> list[type[FdtError]]:
    """Returns the errors that a call may fail by: what a step raises comes as an event of the job, with the step."""
    below = (child for child in base.__subclasses__() if child is not errors.StepError)
    return [base, *(found for child in below for found in tree(child))]


class Failure(grpc.RpcError):
    """A call that failed, as gRPC presents it."""

    def __init__(self, code: grpc.StatusCode, text: str, trailing: Any = ()) -> None:
        self.code, self.details, self.trailing_metadata = lambda: code, lambda: text, lambda: trailing


@pytest.mark.parametrize("kind", tree())
def test_every_error_comes_back_as_itself(kind: type[FdtError]) -> None:
    code, text, trailing = statuses.to_status(kind("what happened"))
    back = statuses.from_rpc_error(Failure(code, text, trailing))
    assert type(back) is kind and str(back) == "what happened"
    assert code is not grpc.StatusCode.OK


def test_table_holds_what_is_raised() -> None:
    # Of those that have kinds, only these are raised themselves.
    also = {errors.NativeError, errors.WorkerError, errors.PoolUnreachableError}
    raised = {kind for kind in tree() if not kind.__subclasses__()} | also
    assert raised == set(statuses.STATUS)


@pytest.mark.parametrize("code", list(grpc.StatusCode))
def test_every_status_from_elsewhere_means_something(code: grpc.StatusCode) -> None:
    assert len(grpc.StatusCode) == 17
    error = statuses.from_rpc_error(Failure(code, "from a proxy"), "host:1")
    assert isinstance(error, FdtError) and type(error) is not FdtError
    assert "from a proxy" in str(error) and code.name in str(error) and "host:1" in str(error)
    assert (code in statuses.FOREIGN_STATUS) == (code is not grpc.StatusCode.OK)


def test_unknown_class_from_a_newer_pool() -> None:
    error = statuses.from_rpc_error(Failure(grpc.StatusCode.UNKNOWN, "new", (("fdt-error", "BrandNewError"),)))
    assert isinstance(error, FdtError) and str(error) == "new"


def test_a_call_cannot_fail_by_an_error_that_needs_its_step() -> None:
    error = statuses.from_rpc_error(Failure(grpc.StatusCode.UNKNOWN, "text", (("fdt-error", "StepError"),)))
    assert type(error) is errors.JobError and str(error) == "text"


def test_translated() -> None:
    with pytest.raises(PoolError, match="text"), statuses.translated():
        raise Failure(grpc.StatusCode.INTERNAL, "text")


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.8.8.8:80", "localhost:1", "[::1]:0"])
def test_loopback_needs_nothing(listen: str) -> None:
    rpc.check_listen(listen, None, tls=False)


def test_a_socket_needs_a_private_folder_or_a_token(tmp_path: Path) -> None:
    listen = f"unix:{tmp_path}/pool.sock"
    tmp_path.chmod(0o700)
    rpc.check_listen(listen, None, tls=False)
    tmp_path.chmod(0o711)
    rpc.check_listen(listen, "token", tls=False)
    with pytest.raises(UsageError, match=f"chmod 700 {tmp_path}"):
        rpc.check_listen(listen, None, tls=False)
    with pytest.raises(UsageError, match="Cannot listen there"):
        rpc.check_listen(f"unix:{tmp_path}/absent/pool.sock", "token", tls=False)


def test_a_status_is_cut_to_what_a_header_holds() -> None:
    said: list[str] = []
    context = types.SimpleNamespace(set_trailing_metadata=lambda _: None, abort=lambda _, text: said.append(text))
    for text in ("x" * 100_000, "€" * 100_000, "short"):
        statuses.abort(context, PoolError(text))
    assert said == ["x" * 2000, "€" * 666, "short"]


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.com:1", ":1"])
def test_others_need_token_and_tls(listen: str) -> None:
    for token, tls in ((None, False), ("token", False), (None, True), ("", True)):
        with pytest.raises(UsageError, match="--token-file"):
            rpc.check_listen(listen, token, tls)
    rpc.check_listen(listen, "token", tls=True)


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:x", "127.0.0.1:99999", ""])
def test_no_address(listen: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        rpc.check_listen(listen, None, tls=False)


def test_watch_cancels_what_stands_still() -> None:
    cancelled = []
    watch = rpc.Watch(lambda: cancelled.append(1), Timing(chunk_s=0.01).chunk_s)
    with watch:
        watch._thread.join(5.0)
    assert cancelled == [1]


def test_watch_lets_go() -> None:
    cancelled = []
    with rpc.Watch(lambda: cancelled.append(1), 1000.0) as watch:
        assert list(watch.each([1, 2])) == [1, 2]
    assert not cancelled and not watch._thread.is_alive()


@pytest.mark.parametrize("workers", [8, 8000])
def test_as_many_calls_may_wait_for_a_thread_as_the_door_lets_in(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above this bound gRPC cancels calls by chance, and says nothing."""
    served: dict[str, object] = {}
    monkeypatch.setattr(grpc, "server", lambda *_, **given: served.update(given["options"]))
    limiter = RateLimiter(DEFAULT, Timing(), num_workers=workers)
    rpc.create_server(rpc.RequireToken(lambda *_: None), limiter, DEFAULT, Timing())
    pending = served["grpc.server.max_pending_requests"]
    assert isinstance(pending, int) and pending >= max(1000, limiter.max_calls) >= workers
    assert served["grpc.server.max_pending_requests_hard_limit"] == 3 * pending
