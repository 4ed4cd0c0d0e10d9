"""What the store can answer instead of a result; each class is one decision for the caller: give up, retry or mend."""

from __future__ import annotations

from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection


class StoreError(Exception):
    """Base of everything the store raises about an operation."""


class StoreUnavailable(StoreError):
    """Nothing was written and the same operation may work later: disk full, database locked, store closed."""


class StoreRefusal(StoreError):
    """The operation itself is not allowed in the present state; repeating it gives the same answer."""


class AttemptEnded(StoreRefusal):
    """A call, reward or heartbeat came for an attempt that has ended: its record no longer changes."""


class UnknownAttempt(StoreRefusal):
    """No such rollout or attempt."""


class IdentityConflict(StoreRefusal):
    """An id that is already taken came again with other content."""


def translated(error: Exception, doing: str) -> Exception:
    """What a database's error is to whoever asked; errors of other kinds come back as they are.

    StoreUnavailable (nobody answers, a time limit, a lock, no disk: come back later), ValueError (a value that no
    column holds: never repeat it). ``doing`` is "read" or "write".
    """
    # A full disk rolls back by itself, so that undoing the savepoint fails too: the first error is the cause.
    cause: BaseException = error
    while cause.__context__ is not None:
        cause = cause.__context__
    if isinstance(error, OperationalError | InterfaceError | NoConnection) or (
        isinstance(error, DBAPIError) and error.connection_invalidated
    ):
        return StoreUnavailable(f"the store cannot {doing} now: {cause}")
    if isinstance(error, DataError):
        return ValueError(f"the store cannot hold a value of this request: {cause}")
    return error
