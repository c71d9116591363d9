"""Identifies the callers of a pool and decides which calls each may make.

The operator holds the pool's own token and may make every call. Persons have tokens of their own (`fdt.pool.token_file`) and
may use only their own jobs and blobs. In a pool without persons, everybody who has the pool's token is the operator.
"""

import dataclasses
import enum
import hmac
import threading
from collections.abc import Iterable, Iterator
from typing import TypeVar

import grpc

from fdt.base import log
from fdt.errors import AccessError
from fdt.pool.audit import AuditLog
from fdt.pool.token_file import OPERATOR, TokenFile, hashed
from fdt.transport import rpc

T = TypeVar("T")

WRONG_TOKEN = (
    "The pool does not accept this token. Give the pool's own, or the one that its operator has made for you, with "
    "--token-file. If the pool has a token for hosts, a host that joins gives that one with --join-token-file."
)
_OPERATORS = "This is for the pool's operator alone, with the pool's own token; yours is a person's."


class Rule(enum.Enum):
    """The tokens that a method accepts."""

    OPERATOR = enum.auto()
    # The operator's and persons'. The service also checks that the jobs and blobs in the request are the caller's own.
    CLIENTS = enum.auto()
    # The hosts' token; the operator's, if the pool has no token for hosts.
    HOSTS = enum.auto()
    EVERYBODY = enum.auto()


# All other methods accept only the operator's token.
RULES = {
    f"{rpc.HEALTH}/Check": Rule.EVERYBODY,
    "fdt.v1.Pool/Describe": Rule.CLIENTS,
    "fdt.v1.Pool/ListJobs": Rule.CLIENTS,
    "fdt.v1.Pool/View": Rule.CLIENTS,
    "fdt.v1.Pool/GetLogs": Rule.CLIENTS,
    "fdt.v1.Pool/CancelJob": Rule.CLIENTS,
    # The page shows the jobs and logs of all persons.
    "fdt.v1.Pool/OpenPage": Rule.OPERATOR,
    "fdt.v1.Jobs/Train": Rule.CLIENTS,
    "fdt.v1.Blobs/FindMissing": Rule.CLIENTS,
    "fdt.v1.Blobs/Put": Rule.CLIENTS,
    "fdt.v1.Blobs/Get": Rule.CLIENTS,
    # A host receives the programs and data of all persons.
    "fdt.v1.Hosts/Attach": Rule.HOSTS,
}


@dataclasses.dataclass(frozen=True)
class Caller:
    """The operator or a person, as the sender of a call.

    Attributes:
        name: The person's name; "" for the operator.
        sees_all: Whether the caller may also use other persons' jobs and blobs.
        sha256: The hash of a person's token, in hex; "" for the operator.
    """

    name: str = ""
    sees_all: bool = True
    sha256: str = ""

    @property
    def label(self) -> str:
        """The name in messages and logs."""
        return self.name or OPERATOR

    def may_see(self, owner: str) -> bool:
        """Whether this caller may use the jobs and blobs of `owner`, a person's name or "" for the operator."""
        return self.sees_all or owner == self.name


class Access:
    """Checks the tokens of a pool's callers; its methods may be called from any thread."""

    def __init__(
        self,
        token: str | None,
        join_token: str | None = None,
        persons: TokenFile | None = None,
        share: bool = False,
        audit: AuditLog | None = None,
    ) -> None:
        """
        Args:
            token: The pool's own token; None if every caller is the operator.
            join_token: The hosts' token; None if hosts use the pool's own.
            persons: The tokens of persons; None for none.
            share: Whether persons may use each other's jobs and blobs.
            audit: Records callers' actions; None to record nothing.
        """
        self._token, self._join_token, self._persons, self._share = token, join_token, persons, share
        self.audit = audit or AuditLog(None)
        self._lock = threading.Lock()
        self._num_wrong = 0

    # ---- tokens -----------------------------------------------------------------------------------------------------

    def complaint(self, method: str, given: bytes) -> str | None:
        """Returns the reason why a method does not accept a token; None if it does.

        Args:
            method: "package.Service/Method".
            given: The token; b"" for none.
        """
        rule = RULES.get(method, Rule.OPERATOR)
        if self._join_token is not None and rule in (Rule.HOSTS, Rule.EVERYBODY):
            if _same(given, self._join_token):
                return None
            if rule is Rule.HOSTS:
                return WRONG_TOKEN
        found = self._identified(given)
        if isinstance(found, str):
            return found
        return _OPERATORS if found.name and rule in (Rule.HOSTS, Rule.OPERATOR) else None

    def caller(self, context: grpc.ServicerContext) -> Caller:
        """Returns the caller of a client's call.

        Raises:
            AccessError: The token is not valid.
        """
        found = self._identified(rpc.given_token(context))
        if isinstance(found, str):
            raise AccessError(found)
        return found

    def _identified(self, given: bytes) -> Caller | str:
        """Returns the caller to whom a token belongs, or the reason why it is not valid."""
        if self._token is None or _same(given, self._token):
            return Caller()
        person = self._person(given)
        if person is None:
            return WRONG_TOKEN
        return self.lost(person) or person

    def _person(self, given: bytes) -> Caller | None:
        """Returns the person who holds a token, which may have expired."""
        sha256 = hashed(given)
        token = self._persons.find(sha256) if self._persons is not None else None
        return None if token is None else Caller(token.name, self._share, sha256)

    def lost(self, caller: Caller) -> str | None:
        """Returns the reason why a caller's token is no longer valid; None while it is valid."""
        if self._persons is None or not caller.sha256:
            return None
        token = self._persons.find(caller.sha256)
        if token is not None and not self._persons.is_expired(token):
            return None
        end = "was revoked" if token is None else "has expired"
        return f"The token of {caller.name} {end}. The pool's operator can make another: `fdt token add {caller.name}`."

    def while_valid(self, caller: Caller, items: Iterable[T]) -> Iterator[T]:
        """Yields items for as long as a caller's token is valid.

        Raises:
            AccessError: The token is no longer valid.
        """
        for item in items:
            lost = self.lost(caller)
            if lost is not None:
                raise AccessError(lost)
            yield item

    def counted_as(self, context: grpc.ServicerContext) -> str:
        """Returns the client that a call counts against in rate limits: the person's name, else the connection's address."""
        found = self._identified(rpc.given_token(context))
        return found.name if isinstance(found, Caller) and found.name else context.peer()

    # ---- the audit log ----------------------------------------------------------------------------------------------

    def did(self, context: grpc.ServicerContext, event: str, **fields: str | int) -> None:
        """Writes a caller's action into the audit log."""
        given = rpc.given_token(context)
        found = self._identified(given)
        # The log names a person whose token has expired, too.
        caller = found if isinstance(found, Caller) else self._person(given)
        self.audit.write(event, caller.label if caller is not None else "", **fields, peer=context.peer())

    def refused(self, context: grpc.ServicerContext, method: str, why: str) -> None:
        """Records that a call was refused for its token."""
        given = rpc.given_token(context)
        self.did(context, "refused", method=method, reason=why if given else "no token")
        # Only wrong tokens count as guesses.
        if not given or why is not WRONG_TOKEN:
            return
        with self._lock:
            self._num_wrong += 1
            num_wrong = self._num_wrong
        # Logs at 1, 10, 100 calls: guesses must not fill the log.
        if num_wrong == 10 ** (len(str(num_wrong)) - 1):
            log.notice(
                f"{num_wrong:,} call(s) with a wrong token were refused so far, the last from {context.peer()}. If there "
                "are many, somebody guesses; see who reaches this port"
            )


def _same(given: bytes, expected: str) -> bool:
    return hmac.compare_digest(given, expected.encode())
