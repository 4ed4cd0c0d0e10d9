"""Writes tests/golden/parity/: tiny random models as transformers saves them, and the logits torch computes.

Needs torch and transformers, which the project itself doesn't; any environment with both will do:

    pip install torch transformers safetensors numpy
    python scripts/make_parity_fixtures.py

The fixtures pin what "loads like transformers" means, for both spellings of rotary settings (`rope_parameters` as
transformers 5 saves it, and the older `rope_theta` + `rope_scaling`, written by hand into `llama_old`).

The other way round, `--check FOLDER` lets transformers read what the project exported (`python -m tests.model.exports
FOLDER`) and compares torch's logits with those that the project computed.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import numpy as np
import safetensors
import torch
import transformers

SIZES = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
MODELS = {
    "llama": ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 5000.0}, "tie_word_embeddings": False}),
    "qwen2": ("qwen2", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 8, "head_dim": 8, "tie_word_embeddings": False}),
}
LENGTH = 48  # longer than the window and than original_max_position_embeddings, so both matter


def make(name: str, folder: Path) -> None:
    """One model: directory as saved by transformers, tokens.npy-like arrays in logits.npz."""
    kind, extra = MODELS[name]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SIZES, **extra, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            # norms and biases start at 1 and 0: random ones show whether they are used at all
            base = 1.0 if "norm" in parameter_name else 0.0
            parameter.copy_(base + torch.randn_like(parameter) * (0.1 if parameter.ndim == 1 else 0.2))
        tokens = torch.randint(0, SIZES["vocab_size"], (2, LENGTH))
        logits = model(tokens).logits
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    with safetensors.safe_open(folder / "model.safetensors", "np") as file:
        (folder / "keys.txt").write_text("".join(f"{key}\n" for key in sorted(file.keys())))
    np.savez_compressed(folder / "logits.npz", tokens=tokens.numpy().astype(np.int32), logits=logits.numpy())


def write_old_spelling(source: Path, folder: Path) -> None:
    """The llama model with its config.json as transformers 4 wrote it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    config = json.loads((source / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def difference(folder: Path) -> tuple[float, float]:
    """Largest difference between torch's logits and those in folder/logits.npz, and the largest logit.

    ValueError where transformers misses a weight, or finds one that the model has no place for.
    """
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, dtype=torch.float32, attn_implementation="eager"
    )
    wrong = {kind: sorted(map(str, report[kind])) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    if any(wrong.values()):
        raise ValueError(f"{folder}: transformers reports {wrong}")
    saved = np.load(folder / "logits.npz")
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(saved["tokens"]).long()).logits.numpy()
    return float(np.abs(logits - saved["logits"]).max()), float(np.abs(logits).max())


def main() -> None:
    default = Path(__file__).parents[1] / "tests" / "golden" / "parity"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=default)
    parser.add_argument("--check", type=Path, help="folder of exports to compare with, instead of writing any")
    options = parser.parse_args()
    if options.check is not None:
        for name in MODELS:
            print("{}: largest difference {:.1e}, largest logit {:.2f}".format(name, *difference(options.check / name)))
        return
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        make(name, out / name)
    write_old_spelling(out / "llama", out / "llama_old")
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (out / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
