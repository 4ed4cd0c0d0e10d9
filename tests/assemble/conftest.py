"""Calls and sealed attempts, built by hand."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import settings
from opentelemetry.proto.trace.v1 import trace_pb2

from lightning_jax import types

settings.register_profile("no_clock", deadline=None)  # a loaded machine is no failure
settings.load_profile("no_clock")

GOLDEN = Path(__file__).parents[1] / "golden" / "agent_spans.jsonl"


def make_call(call_id: str, sequence: int = 0, **changes: Any) -> types.Call:
    call = types.Call(
        call_id=call_id,
        rollout_id="r",
        attempt_id="r.1",
        sequence=sequence,
        prompt_ids=np.array([1, 2, 3], np.int32),
        response_ids=np.array([4, 5], np.int32),
        rollout_logps=np.array([-0.1, -0.2], np.float32),
        sampling=types.SamplingParams(temperature=0.8, top_p=1.0, max_tokens=9, seed=1),
        policy_version=3,
        finish_reason="stop",
        agent_key=f"key-{call_id}",
        started_ns=10 * sequence,
        ended_ns=10 * sequence + 5,
        request={"messages": [{"role": "system", "content": "You write SQL."}, {"role": "user", "content": "hi"}]},
        text="text",
    )
    return replace(call, **changes)


def make_sealed(
    calls: Sequence[types.Call], spans: Sequence[types.Span] = (), rewards: Sequence[types.Reward] = ()
) -> types.SealedAttempt:
    rollout = types.Rollout("r", "t", 2, "eval", 1, {}, types.SamplingDefaults(), step=5)
    outcome = types.Outcome("succeeded", {"answer": 1})
    return types.SealedAttempt(1, rollout, "r.1", outcome, tuple(calls), tuple(spans), tuple(rewards))


def make_span(scope: str, span_id: int, parent: int = 0, trace: bytes = b"t" * 16, **attributes: str) -> types.Span:
    span = trace_pb2.Span(trace_id=trace, span_id=span_id.to_bytes(8, "big"), name="n")
    for key, value in attributes.items():
        span.attributes.add(key=key).value.string_value = value
    parent_id = parent.to_bytes(8, "big") if parent else b""
    return types.Span(trace, span.span_id, parent_id, "r", "r.1", "n", scope, 1, 2, span.SerializeToString())


def captured_spans(capture: str) -> list[types.Span]:
    """The spans that a real agent's instrumentation sent."""
    spans = []
    for line in GOLDEN.read_text().splitlines():
        record = json.loads(line)
        if record["capture"] != capture:
            continue
        body = base64.b64decode(record["span"])
        span = trace_pb2.Span.FromString(body)
        spans.append(
            types.Span(
                span.trace_id,
                span.span_id,
                span.parent_span_id,
                "r",
                "r.1",
                span.name,
                record["scope"],
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                body,
            )
        )
    assert spans
    return spans
