"""One entry for existing models, whatever their files: a HF directory or a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from jax.sharding import Mesh

from lightning_jax.model.config import ModelConfig
from lightning_jax.model.hf import load_hf
from lightning_jax.model.sharding import DEFAULT_RULES, ShardingRules
from lightning_jax.model.tokenizer import Tokenizer
from lightning_jax.model.transformer import Params


@dataclass(frozen=True, slots=True)
class PretrainedModel:
    """A model as its files describe it."""

    config: ModelConfig
    params: Params
    tokenizer: Tokenizer


def load_model(
    path: str | Path,
    *,
    dtype: str = "float32",
    mesh: Mesh | None = None,
    rules: ShardingRules = DEFAULT_RULES,
    cache_dir: str | Path | None = None,
) -> PretrainedModel:
    """Load config, weights and tokenizer.

    Args:
        path: a HF model directory, or a .gguf file (converted once, see `gguf.converted_directory`).
        dtype: dtype of the parameters.
        mesh: leaves are created in `rules`' sharding on it; None for one device.
        cache_dir: where conversions of GGUF files are kept; None for the user's cache.

    Raises:
        ValueError: nothing there, not a model, or a model that the decoder cannot run.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        directory = path
    elif path.is_file() and path.suffix == ".gguf":
        directory = _converted(path, cache_dir)
    elif path.exists():
        raise ValueError(f"{path} is neither a HF model directory nor a .gguf file; give the directory that holds it")
    else:
        raise ValueError(
            f"no model at {path}: download one first "
            "(e.g. `hf download Qwen/Qwen2.5-Coder-0.5B-Instruct --local-dir DIR`) and give its directory or .gguf file"
        )
    config, params = load_hf(directory, dtype=dtype, mesh=mesh, rules=rules)
    tokenizer = Tokenizer.load(directory)
    if tokenizer.vocab_size > config.vocab_size:
        raise ValueError(
            f"{directory}: the tokenizer has {tokenizer.vocab_size} ids, the embedding {config.vocab_size} rows: "
            "the two are not of one model"
        )
    return PretrainedModel(config, params, tokenizer)


def _converted(path: Path, cache_dir: str | Path | None) -> Path:
    try:
        from lightning_jax.model.gguf import converted_directory  # the gguf package is an extra
    except ModuleNotFoundError as error:
        raise ValueError(f"{path} needs the package {error.name!r}: pip install 'lightning_jax[gguf]'") from error
    return converted_directory(path, cache_dir)
