"""llama.cpp's server in a process, through xllamacpp. Knows nothing of lightning_jax.

Started by `benchmarks.engine` with a Python that has xllamacpp: {"model": FILE.gguf, "threads", "slots", "length"}
once, then {"prompts": FILE.npy, "new": 64} per run; one JSON line in, one out.
"""

from __future__ import annotations

import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import xllamacpp


def main() -> None:
    """Serve commands until stdin ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # llama.cpp writes to stdout
    setup = json.loads(sys.stdin.readline())
    params = xllamacpp.CommonParams()
    params.model.path = setup["model"]
    params.n_parallel = setup["slots"]
    params.n_ctx = setup["slots"] * setup["length"]
    params.cpuparams.n_threads = setup["threads"]
    params.cpuparams_batch.n_threads = setup["threads"]
    server = xllamacpp.Server(params)
    print(json.dumps({"xllamacpp": getattr(xllamacpp, "__version__", "")}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        prompts = np.load(command["prompts"])

        def complete(row: np.ndarray, new: int = command["new"]) -> int:
            request = {
                "prompt": row.tolist(), "n_predict": new, "ignore_eos": True, "temperature": 1.0, "top_k": 0,
                "top_p": 1.0, "min_p": 0.0, "cache_prompt": True, "seed": 1,
            }  # fmt: skip
            told = server.handle_completions(request)
            return int(told.get("tokens_predicted") or told["usage"]["completion_tokens"])

        wall, cpu = time.perf_counter(), time.process_time()
        with ThreadPoolExecutor(len(prompts)) as pool:
            tokens = sum(pool.map(complete, prompts))
        told = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu, "tokens": tokens}
        print(json.dumps(told), file=answers, flush=True)


if __name__ == "__main__":
    main()
