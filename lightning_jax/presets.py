"""The named settings of conf/ without Hydra, for `LightningServer` and programs: `preset("credit", "exponential")`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from lightning_jax.configuration import check_name


def presets_root() -> Path:
    """The conf folder: inside an installed package, beside it in a source tree."""
    installed = Path(__file__).with_name("conf")
    return installed if installed.is_dir() else Path(__file__).resolve().parents[1] / "conf"


def presets_of(group: str) -> list[str]:
    """Names of a group's presets, sorted."""
    return sorted(path.stem for path in (presets_root() / group).glob("*.yaml"))


def preset(group: str, name: str) -> dict[str, Any]:
    """The settings of conf/{group}/{name}.yaml. ValueError names the nearest one where there is none of that name.

    What a file selects in other groups (`defaults`, for Hydra) is left out: here each group is chosen by name.
    """
    check_name(name, presets_of(group), f"{group} preset")
    text = (presets_root() / group / f"{name}.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    values.pop("defaults", None)
    return values


def settings(group: str, choice: str | Mapping[str, Any]) -> dict[str, Any]:
    """A preset by name, or the mapping given."""
    return preset(group, choice) if isinstance(choice, str) else dict(choice)
