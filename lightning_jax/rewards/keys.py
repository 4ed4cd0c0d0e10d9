"""Names in configurations: refuses one that is unknown and says which one was probably meant.

A misspelt key that is silently ignored leaves a default in force and spoils a whole run.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any


def nearest(name: str, known: Collection[str]) -> str:
    """The known name most like `name`; "" where nothing is known."""

    def likeness(one: str) -> float:
        return difflib.SequenceMatcher(None, name.lower(), one.lower()).ratio()

    return max(sorted(known), key=likeness, default="")


def check_name(name: str, known: Collection[str], what: str) -> None:
    """Raise ValueError where `name` is not among `known`, naming the nearest one. `what`: "term", "strategy" ..."""
    if name not in known:
        raise ValueError(
            f"unknown {what} {name!r}; did you mean {nearest(name, known)!r}? (known: {', '.join(sorted(known))})"
        )


def check_keys(mapping: Mapping[str, Any], known: Collection[str], what: str) -> None:
    """Raise ValueError where `mapping` is no mapping or has a key that is not among `known`."""
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{what} must be a mapping with keys among {', '.join(sorted(known))}; got {mapping!r}")
    for key in mapping:
        check_name(str(key), known, f"key of {what}")


def number(value: Any, what: str) -> float:
    """`value` as a float. Raises ValueError where it is no finite number (YAML's true and "1" are none)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise ValueError(f"{what} must be a finite number, got {value!r}")
    return float(value)
