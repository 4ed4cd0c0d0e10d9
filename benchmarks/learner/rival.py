"""The PyTorch side: a transformers model and a GRPO update as TRL writes it. Knows nothing of lightning_jax.

Started by `benchmarks.learner` with a Python that has torch and transformers; answers one JSON line per command line:
{"load": DIR} takes the weights of a HF directory and a new AdamW; {"batch": FILE.npz, "rows": 8} runs one update and
says its seconds, CPU seconds, the process's peak memory, and what it found: loss, gradient norm, entropy, gap to the
sampler.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

ENTROPY_ROWS = 128  # tokens whose log-softmax exists at a time


class Rival:
    """Model and optimiser."""

    def __init__(self, folder: str, device: str, dtype: str, checkpointing: bool) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
        self.model.to(device).train()
        if checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, betas=(0.9, 0.99), weight_decay=0.0)

    def update(self, batch: dict[str, torch.Tensor], rows: int, entropy: bool) -> dict[str, float]:
        """One optimiser step: clipped surrogate on-policy, mean per sequence, then over sequences.

        Gradients are accumulated over micro-batches of `rows` rows; entropy is a metric, not part of the loss.
        """
        count, total = batch["trained"].shape[1], batch["ids"].shape[0]
        tokens = batch["trained"].sum()
        self.optimizer.zero_grad(set_to_none=True)
        found = {"loss": 0.0, "entropy": 0.0, "gap": 0.0}
        for start in range(0, total, rows):
            part = {name: x[start : start + rows] for name, x in batch.items()}
            logp, entropies = logprobs(self.model, part["ids"], part["attended"], count, entropy)
            ratio = torch.exp(logp - logp.detach())
            advantage = part["advantages"][:, None]
            per_token = -torch.min(ratio * advantage, ratio.clamp(0.8, 1.28) * advantage)
            loss = ((per_token * part["trained"]).sum(-1) / part["trained"].sum(-1)).sum() / total
            loss.backward()
            gap = (logp.detach() - part["sampled"]).abs()
            found["loss"] += float(loss.detach())
            found["entropy"] += float((entropies * part["trained"]).sum() / tokens)
            found["gap"] += float((gap * part["trained"]).sum() / tokens)
        found["grad_norm"] = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0))
        self.optimizer.step()
        return found


def logprobs(
    model: Any, ids: torch.Tensor, attended: torch.Tensor, count: int, entropy: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs and entropies f32[B,count] of the last `count` tokens, without whole log-softmaxes."""
    positions = (attended.cumsum(-1) - 1).clamp(min=0)
    logits = model(
        ids, attention_mask=attended, position_ids=positions, logits_to_keep=count + 1, use_cache=False
    ).logits
    logits, targets = logits[:, :-1], ids[:, -count:]
    chosen = torch.gather(logits, -1, targets[..., None]).squeeze(-1)
    # row by row, so that the float32 log-sum-exp is small
    logp = chosen.float() - torch.stack([torch.logsumexp(row.float(), dim=-1) for row in logits])
    with torch.no_grad():
        return logp, entropies_of(logits) if entropy else torch.zeros_like(logp)


def entropies_of(logits: torch.Tensor) -> torch.Tensor:
    """f32[B,N] of logits [B,N,V], a few tokens at a time."""
    parts = []
    for rows in logits.reshape(-1, logits.shape[-1]).split(ENTROPY_ROWS):
        logs = torch.log_softmax(rows.float(), dim=-1)
        parts.append(-(logs.exp() * logs).sum(-1))
    return torch.cat(parts).reshape(logits.shape[:-1])


def main() -> None:
    """Read the settings, then one command per line until the input ends."""
    first = json.loads(sys.stdin.readline())
    device = first["device"]
    if device == "cpu":
        torch.set_num_threads(first["threads"])
    print(json.dumps({"torch": torch.__version__}), flush=True)
    rival: Rival | None = None
    for line in sys.stdin:
        command = json.loads(line)
        if "load" in command:
            rival = None  # the old one goes first
            rival = Rival(command["load"], device, first["dtype"], first["checkpointing"])
            print(json.dumps({"loaded": command["load"]}), flush=True)
            continue
        assert rival is not None, "a batch before any weights"
        with np.load(command["batch"]) as arrays:
            batch = {name: torch.from_numpy(x).to(device) for name, x in arrays.items()}
        started, busy = time.perf_counter(), time.process_time()
        answer: dict[str, float] = rival.update(batch, command["rows"], first["entropy"])
        if device != "cpu":
            torch.cuda.synchronize()
        answer |= {"seconds": time.perf_counter() - started, "cpu": time.process_time() - busy}
        if device == "cpu":
            answer["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        else:
            answer["peak"] = torch.cuda.max_memory_allocated()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
