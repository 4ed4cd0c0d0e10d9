"""The PyTorch side: a transformers model and a GRPO update as TRL writes it. Knows nothing of lightning_jax.

Started by `benchmarks.learner` with a Python that has torch and transformers; answers one JSON line per command line:
{"batch": FILE.npz, "rows": 8} runs one update and says its seconds, CPU seconds and the process's peak memory.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM


def build(sizes: dict[str, Any], device: str, dtype: str) -> tuple[Any, Any]:
    """Model with random weights of the given sizes, in training mode, and its AdamW."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["embed_dim"],
        intermediate_size=sizes["mlp_dim"],
        num_hidden_layers=sizes["num_layers"],
        num_attention_heads=sizes["num_heads"],
        num_key_value_heads=sizes["num_kv_heads"],
        head_dim=sizes["head_dim"],
        tie_word_embeddings=sizes["tie_embeddings"],
        max_position_embeddings=8192,
        attn_implementation="sdpa",
    )
    model = LlamaForCausalLM(config).to(device).train()
    if dtype == "bfloat16":
        model = model.to(torch.bfloat16)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.99), weight_decay=0.0)


def logprobs(model: Any, ids: torch.Tensor, attended: torch.Tensor, count: int) -> torch.Tensor:
    """f32[B,count]: log-probs of the last `count` tokens; float32 without whole log-softmaxes."""
    positions = (attended.cumsum(-1) - 1).clamp(min=0)
    logits = model(
        ids, attention_mask=attended, position_ids=positions, logits_to_keep=count + 1, use_cache=False
    ).logits
    logits, targets = logits[:, :-1], ids[:, -count:]
    chosen = torch.gather(logits, -1, targets[..., None]).squeeze(-1)
    # row by row, so that the float32 log-sum-exp is small
    return chosen.float() - torch.stack([torch.logsumexp(row.float(), dim=-1) for row in logits])


def update(model: Any, optimizer: Any, batch: dict[str, torch.Tensor], rows: int) -> float:
    """One optimiser step: clipped surrogate on-policy, mean per sequence then over sequences, gradients accumulated."""
    count, total = batch["trained"].shape[1], batch["ids"].shape[0]
    optimizer.zero_grad(set_to_none=True)
    value = 0.0
    for start in range(0, total, rows):
        part = {name: x[start : start + rows] for name, x in batch.items()}
        logp = logprobs(model, part["ids"], part["attended"], count)
        ratio = torch.exp(logp - logp.detach())
        advantage = part["advantages"][:, None]
        per_token = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
        loss = ((per_token * part["trained"]).sum(-1) / part["trained"].sum(-1)).sum() / total
        loss.backward()
        value += float(loss.detach())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return value


def main() -> None:
    """Read the sizes, then one command per line until the input ends."""
    first = json.loads(sys.stdin.readline())
    device = first["device"]
    if device == "cpu":
        torch.set_num_threads(first["threads"])
    model, optimizer = build(first["sizes"], device, first["dtype"])
    print(json.dumps({"ready": True, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        with np.load(command["batch"]) as arrays:
            batch = {name: torch.from_numpy(x).to(device) for name, x in arrays.items()}
        started, busy = time.perf_counter(), time.process_time()
        loss = update(model, optimizer, batch, command["rows"])
        if device != "cpu":
            torch.cuda.synchronize()
        answer = {"seconds": time.perf_counter() - started, "cpu": time.process_time() - busy, "loss": loss}
        if device == "cpu":
            answer["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        else:
            answer["peak"] = torch.cuda.max_memory_allocated()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
