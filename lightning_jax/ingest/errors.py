"""What the store can answer instead of a result; each class is one decision for the caller: give up, retry or mend."""

from __future__ import annotations


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
