"""Our nouns to protobuf messages and back. Invariant: ``x_of(x_message(x)) == x`` for every noun, tokens bit for bit.

The ``*_of`` functions take input from outside: they raise ValueError, with what is wrong, on a message nobody can use.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from opentelemetry.proto.trace.v1 import trace_pb2

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import call_pb2, policy_pb2, reward_pb2, rollout_pb2, transition_pb2
from lightning_jax.ingest.records import json_text, logp_bytes, logps_of, token_bytes, tokens_of
from lightning_jax.ingest.rollouts import RolloutStatus

MODES: dict[str, Any] = {name: rollout_pb2.Mode.Value(f"MODE_{name.upper()}") for name in get_args(types.Mode)}
STATUSES: dict[str, Any] = {
    name: rollout_pb2.AttemptStatus.Value(f"ATTEMPT_STATUS_{name.upper()}") for name in get_args(types.AttemptStatus)
}
STATES: dict[str, Any] = {
    name: rollout_pb2.RolloutState.Value(f"ROLLOUT_STATE_{name.upper()}") for name in ("queued", "running", "sealed")
}
DISPOSITIONS: dict[str, Any] = {
    name: rollout_pb2.Disposition.Value(f"DISPOSITION_{name.upper()}")
    for name in ("sealed", "requeued", "already_ended")
}
FINISH_REASONS: dict[str, Any] = {
    name: call_pb2.FinishReason.Value(f"FINISH_REASON_{name.upper()}") for name in get_args(types.FinishReason)
}
VERDICTS: dict[str, Any] = {
    name: call_pb2.ToolVerdict.Value(f"TOOL_VERDICT_{name.upper()}") for name in get_args(types.ToolVerdict)
}


def name_of(names: Mapping[str, Any], number: int, what: str) -> Any:
    """The word for an enum's number. Raises ValueError for unspecified or unknown numbers."""
    for name, value in names.items():
        if value == number:
            return name
    raise ValueError(f"{what} is {number}; it must be one of {names}")


def json_of(text: str, what: str) -> dict[str, Any]:
    """A JSON object; empty text is {}. Raises ValueError for anything else."""
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be a JSON object, got {type(value).__name__}")
    return value


def rollout_message(rollout: types.Rollout) -> rollout_pb2.Rollout:
    """Rollout to protobuf."""
    sampling = rollout.sampling
    return rollout_pb2.Rollout(
        rollout_id=rollout.rollout_id,
        task_id=rollout.task_id,
        sample=rollout.sample,
        mode=MODES[rollout.mode],
        seed=rollout.seed,
        input_json=json_text(rollout.input, f"input of rollout {rollout.rollout_id!r}"),
        sampling=rollout_pb2.SamplingDefaults(
            temperature=sampling.temperature, top_p=sampling.top_p, max_tokens=sampling.max_tokens
        ),
        step=rollout.step,
        timeout_s=rollout.timeout_s,
        max_attempts=rollout.max_attempts,
    )


def rollout_of(message: rollout_pb2.Rollout) -> types.Rollout:
    """Protobuf to Rollout."""
    given = message.sampling
    return types.Rollout(
        rollout_id=message.rollout_id,
        task_id=message.task_id,
        sample=message.sample,
        mode=name_of(MODES, message.mode, f"mode of rollout {message.rollout_id!r}"),
        seed=message.seed,
        input=json_of(message.input_json, f"input_json of rollout {message.rollout_id!r}"),
        sampling=types.SamplingDefaults(
            temperature=given.temperature if given.HasField("temperature") else None,
            top_p=given.top_p if given.HasField("top_p") else None,
            max_tokens=given.max_tokens if given.HasField("max_tokens") else None,
        ),
        step=message.step,
        timeout_s=message.timeout_s,
        max_attempts=message.max_attempts,
    )


def attempt_message(attempt: types.Attempt) -> rollout_pb2.Attempt:
    """Attempt to protobuf."""
    return rollout_pb2.Attempt(
        rollout=rollout_message(attempt.rollout),
        attempt_id=attempt.attempt_id,
        number=attempt.number,
        base_url=attempt.base_url,
        api_key=attempt.api_key,
        lease_s=attempt.lease_s,
    )


def attempt_of(message: rollout_pb2.Attempt) -> types.Attempt:
    """Protobuf to Attempt."""
    return types.Attempt(
        rollout=rollout_of(message.rollout),
        attempt_id=message.attempt_id,
        number=message.number,
        base_url=message.base_url,
        api_key=message.api_key,
        lease_s=message.lease_s,
    )


def outcome_message(outcome: types.Outcome) -> rollout_pb2.Outcome:
    """Outcome to protobuf."""
    output = json_text(outcome.output, "output of the attempt")
    return rollout_pb2.Outcome(status=STATUSES[outcome.status], output_json=output, reason=outcome.reason)


def outcome_of(message: rollout_pb2.Outcome) -> types.Outcome:
    """Protobuf to Outcome."""
    status = name_of(STATUSES, message.status, "outcome.status")
    return types.Outcome(status, json_of(message.output_json, "outcome.output_json"), message.reason)


def progress_message(status: RolloutStatus) -> rollout_pb2.RolloutProgress:
    """RolloutStatus to protobuf."""
    return rollout_pb2.RolloutProgress(
        rollout_id=status.rollout_id,
        state=STATES[status.state],
        attempts=status.attempts,
        status=STATUSES.get(status.status),
    )


def call_message(call: types.Call) -> call_pb2.Call:
    """Call to protobuf."""
    sampling = call.sampling
    return call_pb2.Call(
        call_id=call.call_id,
        rollout_id=call.rollout_id,
        attempt_id=call.attempt_id,
        sequence=call.sequence,
        prompt_ids=token_bytes(call.prompt_ids),
        response_ids=token_bytes(call.response_ids),
        rollout_logps=logp_bytes(call.rollout_logps),
        sampling=call_pb2.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            stop=sampling.stop,
            kept_mass=sampling.kept_mass,
        ),
        policy_version=call.policy_version,
        finish_reason=FINISH_REASONS[call.finish_reason],
        agent_key=call.agent_key,
        started_ns=call.started_ns,
        ended_ns=call.ended_ns,
        request_json=json_text(call.request, f"request of call {call.call_id!r}"),
        text=_sendable(call.text),
        tool_calls=None if call.tool_calls is None else issued_message(call.tool_calls),
        request_key=call.request_key,
        delivered_ns=call.delivered_ns,
        superseded_by=call.superseded_by,
    )


def call_of(message: call_pb2.Call) -> types.Call:
    """Protobuf to Call."""
    sampling = message.sampling
    return types.Call(
        call_id=message.call_id,
        rollout_id=message.rollout_id,
        attempt_id=message.attempt_id,
        sequence=message.sequence,
        prompt_ids=tokens_of(message.prompt_ids),
        response_ids=tokens_of(message.response_ids),
        rollout_logps=logps_of(message.rollout_logps),
        sampling=types.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            stop=tuple(sampling.stop),
            kept_mass=sampling.kept_mass if sampling.HasField("kept_mass") else 1.0,
        ),
        policy_version=message.policy_version,
        finish_reason=name_of(FINISH_REASONS, message.finish_reason, f"finish_reason of call {message.call_id!r}"),
        agent_key=message.agent_key,
        started_ns=message.started_ns,
        ended_ns=message.ended_ns,
        request=json_of(message.request_json, f"request_json of call {message.call_id!r}"),
        text=message.text,
        tool_calls=issued_of(message.tool_calls) if message.HasField("tool_calls") else None,
        request_key=message.request_key,
        delivered_ns=message.delivered_ns,
        superseded_by=message.superseded_by,
    )


def issued_message(calls: Sequence[types.IssuedToolCall]) -> call_pb2.IssuedToolCalls:
    """Tool calls as handed out to protobuf."""
    return call_pb2.IssuedToolCalls(
        calls=[
            call_pb2.IssuedToolCall(
                tool_call_id=call.tool_call_id,
                name=_sendable(call.name),
                arguments=_sendable(call.arguments),
                verdict=VERDICTS[call.verdict],
            )
            for call in calls
        ]
    )


def issued_of(message: call_pb2.IssuedToolCalls) -> tuple[types.IssuedToolCall, ...]:
    """Protobuf to tool calls as handed out."""
    return tuple(
        types.IssuedToolCall(
            call.tool_call_id,
            call.name,
            call.arguments,
            name_of(VERDICTS, call.verdict, f"verdict of tool call {call.tool_call_id!r}"),
        )
        for call in message.calls
    )


def _sendable(text: str) -> str:
    """Text without halves of surrogate pairs, which a model may write and UTF-8 has no bytes for."""
    return text.encode("utf-8", "replace").decode("utf-8")


def reward_message(reward: types.Reward) -> reward_pb2.Reward:
    """Reward to protobuf."""
    return reward_pb2.Reward(
        reward_id=reward.reward_id,
        rollout_id=reward.rollout_id,
        attempt_id=reward.attempt_id,
        value=reward.value,
        components=dict(reward.components),
        call_id=reward.call_id,
    )


def reward_of(message: reward_pb2.Reward) -> types.Reward:
    """Protobuf to Reward."""
    if not message.reward_id:
        raise ValueError(
            f"a reward of {message.rollout_id!r} has no reward_id; give it one, so that retries count once"
        )
    return types.Reward(
        reward_id=message.reward_id,
        rollout_id=message.rollout_id,
        attempt_id=message.attempt_id,
        value=message.value if message.HasField("value") else None,
        components=dict(message.components),
        call_id=message.call_id,
    )


def span_of(span: trace_pb2.Span, scope: str, rollout_id: str, attempt_id: str) -> types.Span:
    """An OTLP span as our noun; its bytes are kept whole."""
    return types.Span(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_id=span.parent_span_id,
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        name=span.name,
        scope=scope,
        # uint64 on the wire, signed 64 bits in a database; no true time reaches beyond (year 2262).
        start_ns=min(span.start_time_unix_nano, 2**63 - 1),
        end_ns=min(span.end_time_unix_nano, 2**63 - 1),
        body=span.SerializeToString(),
    )


def sealed_message(sealed: types.SealedAttempt) -> transition_pb2.SealedAttempt:
    """SealedAttempt to protobuf."""
    return transition_pb2.SealedAttempt(
        cursor=sealed.cursor,
        rollout=rollout_message(sealed.rollout),
        attempt_id=sealed.attempt_id,
        outcome=outcome_message(sealed.outcome),
        calls=[call_message(call) for call in sealed.calls],
        spans=[transition_pb2.SealedSpan(scope=span.scope, otlp_span=span.body) for span in sealed.spans],
        rewards=[reward_message(reward) for reward in sealed.rewards],
    )


def sealed_of(message: transition_pb2.SealedAttempt) -> types.SealedAttempt:
    """Protobuf to SealedAttempt."""
    rollout = rollout_of(message.rollout)
    return types.SealedAttempt(
        cursor=message.cursor,
        rollout=rollout,
        attempt_id=message.attempt_id,
        outcome=outcome_of(message.outcome),
        calls=tuple(call_of(call) for call in message.calls),
        spans=tuple(
            span_of(trace_pb2.Span.FromString(span.otlp_span), span.scope, rollout.rollout_id, message.attempt_id)
            for span in message.spans
        ),
        rewards=tuple(reward_of(reward) for reward in message.rewards),
    )


def policy_message(policy: types.PolicyVersion) -> policy_pb2.PolicyVersion:
    """PolicyVersion to protobuf."""
    return policy_pb2.PolicyVersion(version=policy.version, digest=policy.digest, step=policy.step)


def policy_of(message: policy_pb2.PolicyVersion) -> types.PolicyVersion:
    """Protobuf to PolicyVersion."""
    return types.PolicyVersion(version=message.version, digest=message.digest, step=message.step)
