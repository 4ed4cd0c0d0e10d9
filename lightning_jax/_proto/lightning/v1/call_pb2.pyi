from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]
    FINISH_REASON_ABORT: _ClassVar[FinishReason]

class ToolVerdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_VERDICT_UNSPECIFIED: _ClassVar[ToolVerdict]
    TOOL_VERDICT_OK: _ClassVar[ToolVerdict]
    TOOL_VERDICT_INVALID_JSON: _ClassVar[ToolVerdict]
    TOOL_VERDICT_SCHEMA_MISMATCH: _ClassVar[ToolVerdict]
    TOOL_VERDICT_UNKNOWN_TOOL: _ClassVar[ToolVerdict]
    TOOL_VERDICT_TOOL_ERROR: _ClassVar[ToolVerdict]
    TOOL_VERDICT_TIMEOUT: _ClassVar[ToolVerdict]
    TOOL_VERDICT_HTTP_ERROR: _ClassVar[ToolVerdict]
    TOOL_VERDICT_UNANSWERED: _ClassVar[ToolVerdict]
    TOOL_VERDICT_UNKNOWN: _ClassVar[ToolVerdict]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason
FINISH_REASON_ABORT: FinishReason
TOOL_VERDICT_UNSPECIFIED: ToolVerdict
TOOL_VERDICT_OK: ToolVerdict
TOOL_VERDICT_INVALID_JSON: ToolVerdict
TOOL_VERDICT_SCHEMA_MISMATCH: ToolVerdict
TOOL_VERDICT_UNKNOWN_TOOL: ToolVerdict
TOOL_VERDICT_TOOL_ERROR: ToolVerdict
TOOL_VERDICT_TIMEOUT: ToolVerdict
TOOL_VERDICT_HTTP_ERROR: ToolVerdict
TOOL_VERDICT_UNANSWERED: ToolVerdict
TOOL_VERDICT_UNKNOWN: ToolVerdict

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "max_tokens", "seed", "stop", "kept_mass")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    KEPT_MASS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    max_tokens: int
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    kept_mass: float
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., max_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., kept_mass: _Optional[float] = ...) -> None: ...

class IssuedToolCall(_message.Message):
    __slots__ = ("tool_call_id", "name", "arguments", "verdict")
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    tool_call_id: str
    name: str
    arguments: str
    verdict: ToolVerdict
    def __init__(self, tool_call_id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ..., verdict: _Optional[_Union[ToolVerdict, str]] = ...) -> None: ...

class IssuedToolCalls(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[IssuedToolCall]
    def __init__(self, calls: _Optional[_Iterable[_Union[IssuedToolCall, _Mapping]]] = ...) -> None: ...

class Call(_message.Message):
    __slots__ = ("call_id", "rollout_id", "attempt_id", "sequence", "prompt_ids", "response_ids", "rollout_logps", "sampling", "policy_version", "finish_reason", "agent_key", "started_ns", "ended_ns", "request_json", "text", "tool_calls", "request_key", "delivered_ns", "superseded_by")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_IDS_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_LOGPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    AGENT_KEY_FIELD_NUMBER: _ClassVar[int]
    STARTED_NS_FIELD_NUMBER: _ClassVar[int]
    ENDED_NS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_JSON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_KEY_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_NS_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_BY_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    rollout_id: str
    attempt_id: str
    sequence: int
    prompt_ids: bytes
    response_ids: bytes
    rollout_logps: bytes
    sampling: SamplingParams
    policy_version: int
    finish_reason: FinishReason
    agent_key: str
    started_ns: int
    ended_ns: int
    request_json: str
    text: str
    tool_calls: IssuedToolCalls
    request_key: str
    delivered_ns: int
    superseded_by: str
    def __init__(self, call_id: _Optional[str] = ..., rollout_id: _Optional[str] = ..., attempt_id: _Optional[str] = ..., sequence: _Optional[int] = ..., prompt_ids: _Optional[bytes] = ..., response_ids: _Optional[bytes] = ..., rollout_logps: _Optional[bytes] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., policy_version: _Optional[int] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., agent_key: _Optional[str] = ..., started_ns: _Optional[int] = ..., ended_ns: _Optional[int] = ..., request_json: _Optional[str] = ..., text: _Optional[str] = ..., tool_calls: _Optional[_Union[IssuedToolCalls, _Mapping]] = ..., request_key: _Optional[str] = ..., delivered_ns: _Optional[int] = ..., superseded_by: _Optional[str] = ...) -> None: ...

class RejectedCall(_message.Message):
    __slots__ = ("call_id", "reason")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    reason: str
    def __init__(self, call_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RecordCallsRequest(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    def __init__(self, calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ...) -> None: ...

class RecordCallsResponse(_message.Message):
    __slots__ = ("rejected",)
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    rejected: _containers.RepeatedCompositeFieldContainer[RejectedCall]
    def __init__(self, rejected: _Optional[_Iterable[_Union[RejectedCall, _Mapping]]] = ...) -> None: ...

class ListCallsRequest(_message.Message):
    __slots__ = ("attempt_id",)
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    def __init__(self, attempt_id: _Optional[str] = ...) -> None: ...

class ListCallsResponse(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[Call]
    def __init__(self, calls: _Optional[_Iterable[_Union[Call, _Mapping]]] = ...) -> None: ...
