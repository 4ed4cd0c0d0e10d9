"""Rows of the store to the project's nouns and back: exact for token ids, log-probs and JSON.

Invariant: ``call_of(call_row(call))`` equals ``call``; nothing is rounded, re-tokenised or reordered. Of text alone,
what no column of every database holds (NUL, halves of surrogate pairs) is replaced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_jax import types


def json_text(value: Mapping[str, Any], what: str) -> str:
    """Compact ASCII JSON of ``value`` (lone surrogates survive). Raises ValueError naming ``what``."""
    try:
        return json.dumps(dict(value), separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON: {error}") from error


def column_text(text: str) -> str:
    """Text as both databases take it: PostgreSQL refuses NUL, and nothing has bytes for half a surrogate pair."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\ufffd")


def check_ids(what: str, **ids: str) -> None:
    """Raise ValueError for an id that PostgreSQL could not hold; replacing what is in it would make two ids one."""
    for name, value in ids.items():
        if "\0" in value:
            raise ValueError(f"{what} has the {name} {value!r}; an id must not contain NUL")


def token_bytes(ids: NDArray[Any]) -> bytes:
    """Token ids i32[N] as 4N little-endian bytes."""
    return np.asarray(ids, dtype="<i4").tobytes()


def logp_bytes(logps: NDArray[Any]) -> bytes:
    """Log-probs f32[N] as 4N little-endian bytes."""
    return np.asarray(logps, dtype="<f4").tobytes()


def tokens_of(data: bytes) -> types.IntArray:
    """4N little-endian bytes as read-only token ids i32[N]. Raises ValueError where the length is no multiple of 4."""
    return np.frombuffer(data, dtype="<i4").astype(np.int32, copy=False)


def logps_of(data: bytes) -> types.FloatArray:
    """4N little-endian bytes as read-only log-probs f32[N]. Raises ValueError where the length is no multiple of 4."""
    return np.frombuffer(data, dtype="<f4").astype(np.float32, copy=False)


def sampling_defaults_json(sampling: types.SamplingDefaults) -> str:
    """SamplingDefaults as JSON."""
    return json.dumps({"temperature": sampling.temperature, "top_p": sampling.top_p, "max_tokens": sampling.max_tokens})


def rollout_row(rollout: types.Rollout) -> dict[str, Any]:
    """The row of a rollout that nobody has claimed yet. Raises ValueError for ids or an input it can't hold."""
    check_ids("a rollout", rollout_id=rollout.rollout_id, task_id=rollout.task_id)
    return {
        "rollout_id": rollout.rollout_id,
        "task_id": rollout.task_id,
        "sample": rollout.sample,
        "mode": rollout.mode,
        "seed": rollout.seed,
        "step": rollout.step,
        "timeout_s": rollout.timeout_s,
        "max_attempts": rollout.max_attempts,
        "input": json_text(rollout.input, f"input of rollout {rollout.rollout_id!r}"),
        "sampling": sampling_defaults_json(rollout.sampling),
        "state": "queued",
        "attempts": 0,
    }


def rollout_of(row: Mapping[Any, Any]) -> types.Rollout:
    """The rollout of a row of table rollouts."""
    return types.Rollout(
        rollout_id=row["rollout_id"],
        task_id=row["task_id"],
        sample=row["sample"],
        mode=row["mode"],
        seed=row["seed"],
        input=json.loads(row["input"]),
        sampling=types.SamplingDefaults(**json.loads(row["sampling"])),
        step=row["step"],
        timeout_s=row["timeout_s"],
        max_attempts=row["max_attempts"],
    )


def call_row(call: types.Call) -> dict[str, Any]:
    """The row of a call. Raises ValueError where its arrays do not fit together."""
    response, logps = np.shape(call.response_ids), np.shape(call.rollout_logps)
    if len(np.shape(call.prompt_ids)) != 1 or len(response) != 1 or response != logps:
        raise ValueError(
            f"call {call.call_id!r} has prompt_ids{list(np.shape(call.prompt_ids))}, response_ids{list(response)}, "
            f"rollout_logps{list(logps)}; needed are [P], [R], [R]"
        )
    check_ids(
        "a call",
        call_id=call.call_id, rollout_id=call.rollout_id, attempt_id=call.attempt_id, agent_key=call.agent_key,
    )  # fmt: skip
    sampling = call.sampling
    return {
        "call_id": call.call_id,
        "rollout_id": call.rollout_id,
        "attempt_id": call.attempt_id,
        "sequence": call.sequence,
        "prompt_ids": token_bytes(call.prompt_ids),
        "response_ids": token_bytes(call.response_ids),
        "rollout_logps": logp_bytes(call.rollout_logps),
        "sampling": json.dumps(
            {
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "max_tokens": sampling.max_tokens,
                "seed": sampling.seed,
                "stop": list(sampling.stop),
                "kept_mass": sampling.kept_mass,
            }
        ),
        "policy_version": call.policy_version,
        "finish_reason": call.finish_reason,
        "agent_key": call.agent_key,
        "started_ns": call.started_ns,
        "ended_ns": call.ended_ns,
        "request": json_text(call.request, f"request of call {call.call_id!r}"),
        "text": column_text(call.text),  # a model may emit anything
        "tool_calls": None if call.tool_calls is None else tool_calls_json(call.tool_calls),
        "request_key": call.request_key,
        "delivered_ns": call.delivered_ns,
        "superseded_by": call.superseded_by,
    }


def call_of(row: Mapping[Any, Any]) -> types.Call:
    """The call of a row of table calls."""
    sampling = json.loads(row["sampling"])
    sampling["stop"] = tuple(sampling["stop"])
    return types.Call(
        call_id=row["call_id"],
        rollout_id=row["rollout_id"],
        attempt_id=row["attempt_id"],
        sequence=row["sequence"],
        prompt_ids=tokens_of(bytes(row["prompt_ids"])),
        response_ids=tokens_of(bytes(row["response_ids"])),
        rollout_logps=logps_of(bytes(row["rollout_logps"])),
        sampling=types.SamplingParams(**sampling),
        policy_version=row["policy_version"],
        finish_reason=row["finish_reason"],
        agent_key=row["agent_key"],
        started_ns=row["started_ns"],
        ended_ns=row["ended_ns"],
        request=json.loads(row["request"]),
        text=row["text"],
        tool_calls=None if row["tool_calls"] is None else tool_calls_of(row["tool_calls"]),
        request_key=row["request_key"],
        delivered_ns=row["delivered_ns"],
        superseded_by=row["superseded_by"],
    )


def tool_calls_json(calls: Sequence[types.IssuedToolCall]) -> str:
    """Issued tool calls as ASCII JSON (lone surrogates survive)."""
    return json.dumps([[c.tool_call_id, c.name, c.arguments, c.verdict] for c in calls], separators=(",", ":"))


def tool_calls_of(text: str) -> tuple[types.IssuedToolCall, ...]:
    """The reverse of `tool_calls_json`."""
    return tuple(types.IssuedToolCall(*fields) for fields in json.loads(text))


SPAN_COLUMNS = (
    "trace_id",
    "span_id",
    "parent_id",
    "rollout_id",
    "attempt_id",
    "name",
    "scope",
    "start_ns",
    "end_ns",
    "body",
)


def span_row(span: types.Span) -> dict[str, Any]:
    """The row of a span: its bytes as they are; name and scope, which came as UTF-8, without NUL."""
    row = {column: getattr(span, column) for column in SPAN_COLUMNS}
    row["name"], row["scope"] = span.name.replace("\0", "\ufffd"), span.scope.replace("\0", "\ufffd")
    return row


def span_of(row: Mapping[Any, Any]) -> types.Span:
    """The span of a row of table spans."""
    fields = {column: row[column] for column in SPAN_COLUMNS}
    for column in ("trace_id", "span_id", "parent_id", "body"):
        fields[column] = bytes(fields[column])
    return types.Span(**fields)


def reward_row(reward: types.Reward) -> dict[str, Any]:
    """The row of a reward. Raises ValueError for ids or components it can't hold."""
    check_ids(
        "a reward",
        reward_id=reward.reward_id, rollout_id=reward.rollout_id, attempt_id=reward.attempt_id, call_id=reward.call_id,
    )  # fmt: skip
    return {
        "reward_id": reward.reward_id,
        "rollout_id": reward.rollout_id,
        "attempt_id": reward.attempt_id,
        "value": reward.value,
        "components": json_text(reward.components, f"components of reward {reward.reward_id!r}"),
        "call_id": reward.call_id,
    }


def reward_of(row: Mapping[Any, Any]) -> types.Reward:
    """The reward of a row of table rewards."""
    return types.Reward(
        reward_id=row["reward_id"],
        rollout_id=row["rollout_id"],
        attempt_id=row["attempt_id"],
        value=row["value"],
        components=json.loads(row["components"]),
        call_id=row["call_id"],
    )
