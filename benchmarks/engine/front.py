"""What HTTP costs a call: the app over an engine that answers at once, loaded by a process with many connections."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from lightning_jax.garbage import spare_what_is_there
from lightning_jax.model.config import ModelConfig
from lightning_jax.model.tokenizer import Tokenizer
from lightning_jax.serve.app import create_app
from lightning_jax.serve.config import EngineConfig
from lightning_jax.serve.engine import Engine, GenerationRequest
from lightning_jax.serve.generation import Generation, GenerationResult, TokenChunk
from lightning_jax.serve.http import HttpServer
from lightning_jax.types import Call, CallMark, Rollout, SamplingDefaults

KEY = "ljx-bench"
TEMPLATE = (
    "{%- for m in messages -%}<|{{ m.role }}|>{{ m.content }}<|end|>{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"
)
SIZES = {"num_layers": 1, "embed_dim": 8, "mlp_dim": 8, "num_heads": 1, "num_kv_heads": 1, "head_dim": 8}


class InstantEngine(Engine):
    """Everything of an engine but the time: `new` tokens, at once."""

    def __init__(self, new: int) -> None:
        super().__init__(ModelConfig(vocab_size=300, max_position=8192, **SIZES), EngineConfig(max_length=8192))
        self._answer = GenerationResult(
            np.arange(97, 97 + new, dtype=np.int32) % 256, np.full(new, -1.0, np.float32), "length", 0
        )

    @property
    def running(self) -> bool:
        """Always."""
        return True

    def submit(self, request: GenerationRequest, on_chunk: Any = None) -> Generation:
        """Answer."""
        generation = Generation(request, on_chunk)
        if generation.streams:
            generation.push(TokenChunk(self._answer.response_ids.tolist(), self._answer.rollout_logps.tolist()))
        generation.future.set_result(self._answer)
        return generation


class InstantSink:
    """One attempt, and a store that takes no time."""

    def __init__(self) -> None:
        self.rollout = Rollout("ro", "task", 0, "train", 0, {}, SamplingDefaults())
        self.attempt_id, self.status = "at", "running"
        self._stored: Future[None] = Future()
        self._stored.set_result(None)

    def record_call(self, call: Call) -> Future[None]:
        """Durable at once."""
        return self._stored

    def mark_calls(self, marks: Sequence[CallMark]) -> Future[None]:
        """Noted at once."""
        return self._stored

    def calls_of_request(self, attempt_id: str, request_key: str) -> list[Call]:
        """None."""
        return []

    def is_settled(self, api_key: str) -> bool:
        """Always."""
        return True

    def list_calls(self, attempt_id: str) -> list[Call]:
        """None."""
        return []

    def authorize(self, api_key: str) -> InstantSink | None:
        """The attempt."""
        return self if api_key == KEY else None

    def attempt_grant(self, rollout_id: str, attempt_id: str) -> InstantSink | None:
        """The attempt."""
        return self


def tokenizer() -> Tokenizer:
    """One token a byte."""
    vocab = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    names = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    backend.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return Tokenizer(backend, config={"eos_token": "<|end|>"}, chat_templates={"default": TEMPLATE})


def measure(
    requests: int, connections: int, *, new: int = 48, stream: bool = False, rate: float = 0.0
) -> dict[str, float]:
    """Requests per second, p50 and p99 in ms as the clients see them, CPU ms of the server per request.

    rate: requests per second that come; 0: as many as are answered.
    """
    http = HttpServer(create_app(InstantEngine(new), tokenizer(), InstantSink()))
    port = http.start()
    try:
        for count in (max(connections, requests // 10), requests):  # the first round warms
            spare_what_is_there()  # as `python -m lightning_jax.server` does
            load = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.engine.load"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert load.stdout is not None
            assert load.stdin is not None
            wanted = {"port": port, "requests": count, "connections": connections, "key": KEY}
            wanted |= {"stream": stream, "rate": rate}
            load.stdin.write(json.dumps(wanted) + "\n")
            load.stdin.flush()
            load.stdout.readline()  # it is ready
            cpu = time.process_time()
            load.stdin.write("\n")
            load.stdin.flush()
            told = json.loads(load.stdout.readline())
            cpu = time.process_time() - cpu
            load.communicate()
        return {**told, "cpu_ms": 1e3 * cpu / requests}
    finally:
        http.stop()
