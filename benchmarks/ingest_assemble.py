"""From records to trajectories, and reads of a large store: what one core does."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np
from opentelemetry.proto.trace.v1 import trace_pb2

from lightning_jax import types
from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.assemble.trajectory import assemble
from lightning_jax.ingest.reader import StoreReader
from lightning_jax.ingest.store import Store

DEEP = 5000


def calls_per_s() -> dict[str, float]:
    """Calls per CPU-second: flat rollouts of 200 to 8,000 calls with tools, and a chain nested 5,000 deep."""
    found = {}
    for count, name in ((200, "200 calls"), (2000, "2,000 calls"), (8000, "8,000 calls")):
        found[name] = _rate(sealed(count, deep=False))
    found["2,000 calls nested 5,000 deep"] = _rate(sealed(2000, deep=True))
    return found


def _rate(attempt: types.SealedAttempt) -> float:
    best = float("inf")
    for _ in range(3):
        start = time.process_time()
        assembled = assemble(attempt, AgentNaming())
        best = min(best, time.process_time() - start)
        assert len(assembled.trajectory.transitions) == len(attempt.calls)
    return len(attempt.calls) / best


def sealed(count: int, *, deep: bool) -> types.SealedAttempt:
    """An attempt of `count` calls, each with an LLM span, a tool span and what the next request shows of the tool."""
    prompt = np.arange(512, dtype=np.int32)
    response, logps = np.arange(128, dtype=np.int32), np.zeros(128, np.float32)
    schema = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
    tools = [{"type": "function", "function": {"name": "search", "parameters": schema}}]
    calls, spans = [], [_span(number, number - 1, {"gen_ai.agent.name": f"a{number}"}) for number in range(1, DEEP + 1)]
    spans = spans if deep else spans[:3]
    messages: list[dict[str, object]] = [{"role": "system", "content": "You write SQL."}]
    for number in range(count):
        calls.append(
            types.Call(
                f"c{number}", "r", "r.1", number, prompt, response, logps, types.SamplingParams(1.0, 1.0, 128, 0), 0,
                "tool_calls", "k", number, number + 1, {"messages": list(messages[-5:]), "tools": tools}, "text",
            )
        )  # fmt: skip
        function = {"name": "search", "arguments": '{"query": "x"}'}
        identity = f"call_c{number}_0"
        messages.append(
            {"role": "assistant", "tool_calls": [{"id": identity, "type": "function", "function": function}]}
        )
        messages.append({"role": "tool", "tool_call_id": identity, "content": "42"})
        parent = DEEP - number if deep else 3
        llm = {
            "gen_ai.operation.name": "chat",
            "gen_ai.response.id": f"chatcmpl-c{number}",
            "gen_ai.output.messages": "[]",
        }
        spans.append(_span(100_000 + number, parent, llm))
        tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search", "gen_ai.tool.call.id": identity}
        spans.append(_span(200_000 + number, parent, tool))
    rollout = types.Rollout("r", "t", 0, "train", 0, {}, types.SamplingDefaults())
    return types.SealedAttempt(1, rollout, "r.1", types.Outcome("succeeded"), tuple(calls), tuple(spans), ())


def _span(number: int, parent: int, attributes: dict[str, str]) -> types.Span:
    body = trace_pb2.Span(trace_id=b"t" * 16, span_id=number.to_bytes(8, "big"), name="n")
    for key, value in attributes.items():
        body.attributes.add(key=key).value.string_value = value
    parent_id = parent.to_bytes(8, "big") if parent else b""
    scope, start = "opentelemetry.util.genai.handler", number
    return types.Span(
        b"t" * 16, body.span_id, parent_id, "r", "r.1", "n", scope, start, start + 1, body.SerializeToString()
    )


def read_of_a_million_ms(rollouts: int = 25_000, spans: int = 40) -> float:
    """Median time to read one rollout of 40 spans among 1,000,000, in ms; 200 rollouts spread over them are read."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'store.sqlite'}"
        with Store(url) as store:
            sampling = types.SamplingDefaults()
            names = [f"r{number}" for number in range(rollouts)]
            read = names[:: rollouts // 200]
            store.enqueue_rollouts([types.Rollout(n, "t", 0, "train", 0, {}, sampling) for n in read]).result()
            pending = []
            for number, name in enumerate(names):
                trace = number.to_bytes(16, "big")
                batch = [
                    types.Span(trace, k.to_bytes(8, "big"), b"", name, f"{name}.1", "span", "scope", k, k, b"x" * 500)
                    for k in range(1, spans + 1)
                ]
                pending.append(store.record_spans(batch))
                if len(pending) == 512:
                    for future in pending:
                        future.result()
                    pending.clear()
            for future in pending:
                future.result()
            while attempts := store.claim("w", 1000, 600.0, "http://h").result():
                done = [store.complete(attempt.attempt_id, types.Outcome("succeeded")) for attempt in attempts]
                for end in done:
                    end.result()
            assert store.counts().spans == rollouts * spans
        times = []
        with StoreReader(url) as reader:
            for name in read:
                start = time.perf_counter()
                found = reader.rollout(name)
                times.append(time.perf_counter() - start)
                assert found is not None
                assert len(found.spans) == spans
        return 1000 * sorted(times)[len(times) // 2]
