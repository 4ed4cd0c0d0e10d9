"""A tiny random policy, a byte-level tokenizer and a store in memory: what the policy server needs to be real."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from lightning_jax.model.config import ModelConfig
from lightning_jax.model.tokenizer import Tokenizer
from lightning_jax.model.transformer import init_params
from lightning_jax.serve.app import ServeConfig, create_app
from lightning_jax.serve.engine import Engine, EngineConfig, GenerationRequest
from lightning_jax.serve.http import HttpServer
from lightning_jax.serve.policy_engine import PolicyEngine
from lightning_jax.types import Call, CallMark, Rollout, SamplingDefaults

MODEL = ModelConfig(
    vocab_size=264, num_layers=2, embed_dim=32, mlp_dim=64, num_heads=4, num_kv_heads=2, head_dim=8, max_position=512
)
ENGINE = EngineConfig(
    slots=8, max_length=160, prefill_chunk=16, prefill_rows=4, load_rows=8, decode_steps=4, cache_block=80
)
TEMPLATE = (
    "{%- for tool in tools or [] -%}<|sys|>{{ tool | tojson }}<|end|>{%- endfor -%}"
    "{%- for m in messages -%}<|{{ {'system': 'sys', 'user': 'usr', 'tool': 'usr'}.get(m.role, 'ast') }}|>"
    "{{ m.content }}<|end|>{%- endfor -%}{%- if add_generation_prompt -%}<|ast|>{%- endif -%}"
)
SPECIALS = ["<|end|>", "<|sys|>", "<|usr|>", "<|ast|>"]


def policy(seed: int = 0) -> Any:
    """Random weights, large enough that some tokens are much likelier than others."""
    return jax.tree.map(lambda x: x * 6.0 if x.ndim > 2 else x, init_params(MODEL, jax.random.key(seed)))


def byte_tokenizer() -> Tokenizer:
    """One token per byte and four special ones."""
    vocab = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    return Tokenizer(backend, config={"eos_token": "<|end|>"}, chat_templates={"default": TEMPLATE})


class AttemptEnded(Exception):
    """As the store raises it."""


@dataclass(frozen=True)
class Grant:
    rollout: Rollout
    attempt_id: str
    status: str = "running"


@dataclass
class MemorySink:
    """A CallSink that keeps calls in memory; `hold` makes durability wait until it is released."""

    grants: dict[str, Grant] = field(default_factory=dict)  # by api key
    calls: list[Call] = field(default_factory=list)
    held: list[tuple[Future[None], Call]] = field(default_factory=list)
    marks: list[CallMark] = field(default_factory=list)
    cold: set[str] = field(default_factory=set)  # keys that have to be looked up
    hold: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, number: int, **changes: Any) -> Grant:
        values = {"mode": "train", "sampling": SamplingDefaults(), "seed": 1000 + number, **changes}
        rollout = Rollout(rollout_id=f"ro-{number}", task_id=f"t-{number}", sample=0, input={}, **values)
        grant = self.grants[f"ljx-key-{number}"] = Grant(rollout, f"at-{number}")
        return grant

    def end(self, number: int) -> None:
        self.grants[f"ljx-key-{number}"] = replace(self.grants[f"ljx-key-{number}"], status="succeeded")

    def record_call(self, call: Call) -> Future[None]:
        future: Future[None] = Future()
        grant = next(g for g in self.grants.values() if g.attempt_id == call.attempt_id)
        with self.lock:
            if grant.status != "running":
                future.set_exception(AttemptEnded(f"attempt {call.attempt_id} has ended"))
            elif self.hold:
                self.held.append((future, call))
            else:
                self.calls.append(call)
                future.set_result(None)
        return future

    def release(self) -> None:
        with self.lock:
            self.hold = False
            for future, call in self.held:
                self.calls.append(call)
                future.set_result(None)
            self.held.clear()

    def mark_calls(self, marks: Sequence[CallMark]) -> Future[None]:
        future: Future[None] = Future()
        with self.lock:
            self.marks += marks
        future.set_result(None)
        return future

    def is_settled(self, api_key: str) -> bool:
        return api_key not in self.cold

    def authorize(self, api_key: str) -> Grant | None:
        return self.grants.get(api_key)

    def calls_of_request(self, attempt_id: str, request_key: str) -> list[Call]:
        return [call for call in self.list_calls(attempt_id) if call.request_key == request_key]

    def delivery(self, call_id: str) -> int:
        """What was told last of a call's delivery: above 0 it was delivered, below 0 it wasn't."""
        return next((mark.delivered_ns for mark in reversed(self.marks) if mark.call_id == call_id), 0)

    def list_calls(self, attempt_id: str) -> list[Call]:
        return [call for call in self.calls if call.attempt_id == attempt_id]

    def attempt_grant(self, rollout_id: str, attempt_id: str) -> Grant | None:
        found = [g for g in self.grants.values() if (g.rollout.rollout_id, g.attempt_id) == (rollout_id, attempt_id)]
        return found[0] if found else None

    def of(self, number: int) -> list[Call]:
        return sorted((c for c in self.calls if c.attempt_id == f"at-{number}"), key=lambda c: c.sequence)


@dataclass
class Server:
    """A served app and what lies behind it."""

    root: str
    engine: PolicyEngine
    sink: MemorySink
    app: Any

    def base_url(self, number: int) -> str:
        return f"{self.root}/rollout/ro-{number}/attempt/at-{number}/v1"


@contextmanager
def running(config: EngineConfig = ENGINE, eos_ids: tuple[int, ...] = (256,), seed: int = 0) -> Iterator[Engine]:
    engine = Engine(MODEL, config, eos_ids)
    engine.start(policy(seed), 0)
    try:
        yield engine
    finally:
        engine.stop()


@contextmanager
def serving(
    engine: PolicyEngine, tokenizer: Tokenizer, wrap: Callable[[Any], Any] = lambda app: app, **settings: Any
) -> Iterator[Server]:
    """A server on a free port; `wrap` puts something in front of its app."""
    sink = MemorySink()
    for number in range(8):
        sink.add(number)
    app = wrap(create_app(engine, tokenizer, sink, ServeConfig.from_mapping(settings)))
    http = HttpServer(app)
    try:
        yield Server(f"http://127.0.0.1:{http.start()}", engine, sink, app)
    finally:
        http.stop()


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Engines of the same shapes share their compiled programs through JAX's compilation cache.

    JAX_COMPILATION_CACHE_DIR keeps them from one run of the tests to the next.
    """
    names = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {name: getattr(jax.config, name) for name in names}
    jax.config.update(names[0], before[names[0]] or str(tmp_path_factory.mktemp("compiled")))
    jax.config.update(names[1], 0.0)
    yield
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    with running() as engine:
        yield engine


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return byte_tokenizer()


@pytest.fixture
def server(engine: Engine, tokenizer: Tokenizer) -> Iterator[Server]:
    with serving(engine, tokenizer, disconnect_grace_s=0.5, admin_key="adm") as server:
        yield server


def eventually(condition: Any, timeout_s: float = 20.0) -> None:
    """Wait for a condition that another thread brings about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)


def requests(count: int, seed: int = 0) -> list[GenerationRequest]:
    """Requests of many kinds: shared and own prefixes, greedy, tempered, nucleus, short and long."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, 264, 37)
    out = []
    for i in range(count):
        own = rng.integers(0, 264, int(rng.integers(1, 40)))
        prompt = np.concatenate([shared, own]) if i % 2 else own
        if i % 5 == 4:
            prompt = out[-1].prompt_ids
        out.append(
            GenerationRequest(
                prompt_ids=prompt.astype(np.int32),
                max_tokens=int(rng.integers(1, 24)),
                temperature=(1.0, 0.7, 0.0, 1.3)[i % 4],
                top_p=0.8 if i % 3 == 2 else 1.0,
                seed=int(rng.integers(0, 2**32)),
            )
        )
    return out


@pytest.fixture(scope="session")
def wide_engine() -> Iterator[Engine]:
    """Room for prompts with tools."""
    with running(replace(ENGINE, max_length=512, cache_block=0)) as engine:
        yield engine


@pytest.fixture
def wide_server(wide_engine: Engine, tokenizer: Tokenizer) -> Iterator[Server]:
    with serving(wide_engine, tokenizer, disconnect_grace_s=0.5) as server:
        yield server
