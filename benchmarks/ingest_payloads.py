"""Requests for the ingestion benchmark, made once and stamped with fresh ids, so that no batch is a duplicate."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import call_pb2
from lightning_jax.ingest import convert

PROMPT, RESPONSE = 512, 128
_TRACE = b"\xf1\xf2TRACE-ID-HERE\xf3"  # 16 bytes that occur nowhere else


def small_spans(count: int, resource: dict[str, str]) -> bytes:
    """One export of `count` spans of about 0.7 KB, as instrumentations of tools and chains send them."""
    request, scope = _request(resource)
    for number in range(count):
        span = _span(scope, number)
        for key in range(10):
            span.attributes.add(key=f"langgraph.metadata.{key}").value.string_value = f"value of attribute {key} " * 2
        span.attributes.add(key="langgraph_step").value.int_value = number
    return bytes(request.SerializeToString())


def llm_spans(count: int, resource: dict[str, str]) -> bytes:
    """One export of `count` LLM spans that carry token ids and log-probs as attributes."""
    chance = random.Random(0)
    request, scope = _request(resource)
    for number in range(count):
        span = _span(scope, number)
        span.attributes.add(key="gen_ai.request.model").value.string_value = "policy"
        for key, size in (("prompt_token_ids", PROMPT), ("response_token_ids", RESPONSE)):
            values = span.attributes.add(key=key).value.array_value.values
            for _ in range(size):
                values.add().int_value = chance.randrange(150_000)
        values = span.attributes.add(key="response_logprobs").value.array_value.values
        for _ in range(RESPONSE):
            values.add().double_value = -chance.random()
    return bytes(request.SerializeToString())


def stamped(template: bytes, seed: int = 1) -> Iterator[bytes]:
    """The template over and over, each time as another trace."""
    chance = random.Random(seed)
    while True:
        yield template.replace(_TRACE, chance.randbytes(16))


@dataclass(frozen=True)
class Stamped:
    """So many requests from one template, made while they are sent: hours of load fit into memory."""

    template: bytes
    count: int
    seed: int

    def __iter__(self) -> Iterator[bytes]:
        return itertools.islice(stamped(self.template, self.seed), self.count)


def calls(count: int, rollout_id: str, attempt_id: str) -> Iterator[bytes]:
    """RecordCalls requests of `count` packed calls each, with ids of their own."""
    chance = np.random.default_rng(0)
    request = {"model": "policy", "messages": [{"role": "user", "content": "How many singers are there? " * 20}]}
    template = [
        convert.call_message(
            types.Call(
                call_id="", rollout_id=rollout_id, attempt_id=attempt_id, sequence=0,
                prompt_ids=chance.integers(0, 150_000, PROMPT).astype(np.int32),
                response_ids=chance.integers(0, 150_000, RESPONSE).astype(np.int32),
                rollout_logps=-chance.random(RESPONSE).astype(np.float32),
                sampling=types.SamplingParams(1.0, 1.0, RESPONSE, 0), policy_version=0, finish_reason="stop",
                agent_key="k", started_ns=1, ended_ns=2, request=request, text="SELECT count(*) FROM singer",
            )
        )
        for _ in range(count)
    ]  # fmt: skip
    number, label = 0, random.SystemRandom().randrange(2**40)
    while True:
        for message in template:
            message.call_id, message.sequence = f"{label:x}-{number}", number
            number += 1
        yield bytes(call_pb2.RecordCallsRequest(calls=template).SerializeToString())


def _request(resource: dict[str, str]) -> tuple[ExportTraceServiceRequest, object]:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    for key, value in resource.items():
        resource_spans.resource.attributes.add(key=key).value.string_value = value
    scope = resource_spans.scope_spans.add()
    scope.scope.name = "benchmark"
    return request, scope


def _span(scope: object, number: int) -> object:
    span = scope.spans.add(  # type: ignore[attr-defined]
        trace_id=_TRACE, span_id=(number + 1).to_bytes(8, "big"), name=f"node {number}",
        start_time_unix_nano=1_800_000_000_000_000_000 + number, end_time_unix_nano=1_800_000_000_000_100_000 + number,
    )  # fmt: skip
    if number:
        span.parent_span_id = number.to_bytes(8, "big")
    return span
