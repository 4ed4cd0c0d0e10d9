"""Plain data (YAML) → frozen dataclass. A typo must fail with the key that was meant, not train with a default.

A leaf beside `types`: every stage may import it; it knows neither Hydra nor any stage.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar

Config = TypeVar("Config")


def nearest(name: str, known: Collection[str]) -> str:
    """` (did you mean 'x'?)` with the known name most like `name`, or nothing where none is known."""
    near = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.0)
    return f" (did you mean {near[0]!r}?)" if near else ""


def check_name(name: str, known: Collection[str], what: str) -> None:
    """ValueError, with the nearest known name, where `name` is not among `known`."""
    if name not in known:
        raise ValueError(f"unknown {what} {name!r}{nearest(name, known)}; known are {', '.join(sorted(known))}")


def check_keys(mapping: Mapping[str, Any], known: Collection[str], what: str) -> None:
    """ValueError where `mapping` is no mapping or has a key that is not among `known`."""
    if not isinstance(mapping, Mapping):
        raise ValueError(f"{what} must be a mapping with keys among {', '.join(sorted(known))}; got {mapping!r}")
    for key in mapping:
        check_name(str(key), known, f"key of {what}")


def number(value: Any, what: str) -> float:
    """`value` as a float; ValueError where it is no finite number (YAML's true and "1" are none)."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
        raise ValueError(f"{what} must be a finite number, got {value!r}")
    return float(value)


def from_mapping(cls: type[Config], values: Mapping[str, Any], *, where: str, ignored: Collection[str] = ()) -> Config:
    """`cls(**values)`, lists turned into tuples; ValueError names an unknown key and the nearest known one.

    `where` is the config group, for the message; `ignored` are keys that another stage reads.
    """
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    check_keys(values, [*known, *ignored], where)
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k not in ignored}
    try:
        return cls(**plain)
    except TypeError as error:
        raise ValueError(f"{where}: {error}") from error
