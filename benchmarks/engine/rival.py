"""transformers' generate: a static batch, KV cache, sampling at temperature 1. Knows nothing of lightning_jax.

Started by `benchmarks.engine` with a Python that has torch and transformers: {"directory", "threads"} once, then
{"prompts": FILE.npy, "new": 64} per run; one JSON line in, one out.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import torch
import transformers


def main() -> None:
    """Serve commands until stdin ends."""
    setup = json.loads(sys.stdin.readline())
    torch.set_num_threads(setup["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        setup["directory"], dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    print(json.dumps({"torch": torch.__version__, "transformers": transformers.__version__}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        ids = torch.from_numpy(np.load(command["prompts"]).astype(np.int64))
        wall, cpu = time.perf_counter(), time.process_time()
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                min_new_tokens=command["new"],
                max_new_tokens=command["new"],
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                eos_token_id=None,
                pad_token_id=0,
            )
        tokens = (out.shape[1] - ids.shape[1]) * out.shape[0]
        print(
            json.dumps(
                {
                    "wall_s": time.perf_counter() - wall,
                    "cpu_s": time.process_time() - cpu,
                    "tokens": tokens,
                }
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
