"""Plain data (YAML) → frozen dataclass. A typo must fail with the key that was meant, not train with a default."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

Config = TypeVar("Config")


def build(cls: type[Config], values: Mapping[str, Any], *, where: str, ignored: frozenset[str] = frozenset()) -> Config:
    """`cls(**values)` with lists turned into tuples; ValueError names each unknown key and the nearest known one.

    `where` is the config group for the message; `ignored` are keys that another stage reads.
    """
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    problems = []
    for key in values:
        if key in known or key in ignored:
            continue
        near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.4)
        problems.append(f"{key!r}" + (f" (did you mean {near[0]!r}?)" if near else ""))
    if problems:
        raise ValueError(f"unknown keys in {where}: {', '.join(problems)}; known are {sorted(known)}")
    plain = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k not in ignored}
    return cls(**plain)
