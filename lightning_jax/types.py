"""The nouns that cross stage borders. Data only: no logic, no I/O, no jax.

Every record is frozen. Array fields are numpy on the host; each states dtype and shape, with
P prompt tokens, R response tokens and K transitions of one rollout. A stage imports these and its left
neighbour at most, so a field added here is a change of contract: say so in docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]

Mode = Literal["train", "eval"]
AttemptStatus = Literal["succeeded", "failed", "timeout", "crashed", "cancelled", "lost"]
FinishReason = Literal["stop", "length", "tool_calls", "abort"]
ToolVerdict = Literal[
    "ok",
    "invalid_json",
    "schema_mismatch",
    "unknown_tool",
    "tool_error",
    "timeout",
    "http_error",
    "unanswered",
    "unknown",
]
"""How a tool call went. Only "ok" is a success: what nobody could see ("unknown") is none."""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem an agent is asked to solve."""

    task_id: str  # stable across runs; groups the samples of a baseline
    input: Mapping[str, Any]  # JSON; all that the agent gets to see
    reference: Mapping[str, Any] = field(default_factory=dict)  # JSON; for rewards only, never sent to an agent
    tags: Mapping[str, str] = field(default_factory=dict)  # e.g. hardness, db: what evaluations are broken down by


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sample of a task: the unit that gets a reward and enters a baseline."""

    rollout_id: str
    task_id: str
    sample: int  # 0..G-1 within the task's group
    mode: Mode
    seed: int  # u63; seeds of calls derive from it, the prompt's hash and its occurrence
    input: Mapping[str, Any]  # JSON handed to the agent
    sampling: SamplingDefaults
    step: int = 0  # training step that asked for it
    timeout_s: float = 120.0
    max_attempts: int = 1


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Sampling parameters the trainer imposes on the calls of a rollout; None leaves the client's choice."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None  # an upper bound; a smaller wish of the client holds


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a runner at a rollout: the capability that an agent is handed."""

    rollout: Rollout
    attempt_id: str
    number: int  # 1.. of max_attempts
    base_url: str  # http://host:port/rollout/{rollout}/attempt/{attempt}/v1
    api_key: str  # bearer token bound to this attempt
    lease_s: float  # heartbeat within this time or the rollout goes to another runner


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """What the engine sampled with."""

    temperature: float  # 0 is greedy
    top_p: float
    max_tokens: int
    seed: int  # u32
    stop: tuple[str, ...] = ()
    kept_mass: float = 1.0  # mean over tokens of what grammar and top_p left of the policy's distribution; 0: not known


@dataclass(frozen=True, slots=True)
class IssuedToolCall:
    """A tool call as the policy server handed it to the agent, judged by what could be known then."""

    tool_call_id: str  # "" where the model began a call that nobody could read, so that the agent got its text
    name: str
    arguments: str  # as the model wrote them, JSON or not
    verdict: ToolVerdict  # "unanswered" where nothing is wrong so far; else invalid_json, unknown_tool, schema_mismatch


@dataclass(frozen=True, slots=True)
class Call:
    """One LLM call as the engine saw it: the only truth about tokens. Durable before the answer's last byte leaves."""

    call_id: str  # generation id; the HTTP response id is chatcmpl-, resp_ or cmpl-{call_id}
    rollout_id: str
    attempt_id: str
    sequence: int  # 0.. order of admission within the attempt
    prompt_ids: IntArray  # i32[P]
    response_ids: IntArray  # i32[R], the end token included where it was sampled
    rollout_logps: FloatArray  # f32[R], log-prob under the distribution sampled (tempered)
    sampling: SamplingParams
    policy_version: int
    finish_reason: FinishReason
    agent_key: str  # hash of system prompt and tool names: who speaks, without OpenTelemetry
    started_ns: int  # unix time
    ended_ns: int
    request: Mapping[str, Any] = field(default_factory=dict)  # JSON body as received
    text: str = ""  # decoded response
    tool_calls: tuple[IssuedToolCall, ...] | None = None  # what the agent was handed; None: not told
    request_key: str = ""  # digest of the request, by which a retry is known; "": whether it was delivered isn't told
    delivered_ns: int = 0  # unix time of the answer's last byte; 0: not told yet; below 0: it never left
    superseded_by: str = ""  # id of the call that a retry got in this one's place


@dataclass(frozen=True, slots=True)
class CallMark:
    """What became of a call after it was recorded."""

    call_id: str
    delivered_ns: int = 0  # above 0: delivered then; below 0: not delivered, unless it is already known to be
    superseded_by: str = ""  # "" leaves it


@dataclass(frozen=True, slots=True)
class Span:
    """One OpenTelemetry span, kept whole as bytes; decoded only when transitions are built."""

    trace_id: bytes  # 16 bytes
    span_id: bytes  # 8 bytes; (trace_id, span_id) is the identity
    parent_id: bytes  # 8 bytes or empty
    rollout_id: str  # "" where nobody could place it
    attempt_id: str
    name: str
    scope: str  # instrumentation scope: which dialect of conventions it speaks
    start_ns: int
    end_ns: int
    body: bytes  # serialised opentelemetry.proto.trace.v1.Span


@dataclass(frozen=True, slots=True)
class Reward:
    """A reward as a client reported it."""

    reward_id: str  # idempotency key
    rollout_id: str
    attempt_id: str
    value: float | None  # None: only components
    components: Mapping[str, float] = field(default_factory=dict)
    call_id: str = ""  # "": for the whole rollout


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended, as its runner reported it."""

    status: AttemptStatus
    output: Mapping[str, Any] = field(default_factory=dict)  # JSON the agent returned
    reason: str = ""  # why it failed; empty on success


@dataclass(frozen=True, slots=True)
class SealedAttempt:
    """Everything recorded of one ended attempt: what ingest hands to assemble. Never changes once sealed."""

    cursor: int  # position in the transition stream, strictly increasing
    rollout: Rollout
    attempt_id: str
    outcome: Outcome
    calls: tuple[Call, ...]  # by sequence
    spans: tuple[Span, ...]
    rewards: tuple[Reward, ...]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One tool call that the policy made, and how it went by everything that was seen of it."""

    tool_call_id: str
    name: str
    arguments: str  # as the model wrote them, JSON or not
    verdict: ToolVerdict
    status_code: int = 0  # HTTP status of the external API behind the tool; 0 where none was seen
    detail: str = ""  # the error, in short
    latency_s: float | None = None  # by the tool's span


@dataclass(frozen=True, slots=True)
class Transition:
    """One LLM call as a training example: state = prompt_ids, action = response_ids."""

    call_id: str
    index: int  # k of K within its trajectory
    agent: str  # name by config or spans; else the call's agent_key
    prompt_ids: IntArray  # i32[P]
    response_ids: IntArray  # i32[R]
    rollout_logps: FloatArray  # f32[R]
    temperature: float
    policy_version: int
    finish_reason: FinishReason
    reward: float = 0.0  # intermediate reward r_k, 0 where none was reported
    text: str = ""
    node: str = ""  # graph node by spans, where it is not the agent itself
    parents: tuple[str, ...] = ()  # agents above this one by spans, the nearest first
    tools: tuple[ToolUse, ...] = ()  # in the order the policy called them
    components: Mapping[str, float] = field(default_factory=dict)  # named parts of `reward`
    started_ns: int = 0  # unix time, by the server's clock
    ended_ns: int = 0
    kept_mass: float = 1.0  # as in SamplingParams: below 1 the log-probs are those of a restricted distribution


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One rollout, ready to be scored: its transitions in the order the agent made them."""

    rollout_id: str
    task_id: str
    sample: int
    step: int
    mode: Mode
    outcome: Outcome
    transitions: tuple[Transition, ...]
    reported: Mapping[str, float] = field(default_factory=dict)  # components a client reported; "reward" is the total


@dataclass(frozen=True, slots=True)
class Score:
    """The composed reward of one trajectory. valid=False: an infrastructure failure, left out of baselines, not a 0."""

    total: float
    components: Mapping[str, float]
    outcome: float  # the exact task metric (untouched by shaping); dynamic sampling and zero-variance look at it
    valid: bool = True


@dataclass(frozen=True, slots=True)
class ScoredTransition:
    """A transition with what the learner needs: the border between credit and batch."""

    transition: Transition
    task_id: str
    rollout_id: str
    advantage: float  # A of every response token; credit and agent weight are inside
    credit: float  # the weight w_k (apply_to: advantage) or credited reward c_k (apply_to: reward)
    loss_weight: float  # 1, or 0 for an unselected agent (context only)
    agent_factor: float = 1.0  # the agent weight in `advantage`, for an algorithm that makes advantages of its own


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A version of the weights that serve samples from."""

    version: int  # 0 is published before the first rollout
    digest: str  # hex blake2b of the parameters' bytes in sorted key order
    step: int
