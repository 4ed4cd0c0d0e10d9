"""Where generated data, tokenizers, converted models and warmed-up weights are kept between runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_root() -> Path:
    """$LIGHTNING_JAX_CACHE, else ~/.cache/lightning_jax."""
    return Path(os.environ.get("LIGHTNING_JAX_CACHE", Path.home() / ".cache" / "lightning_jax"))
