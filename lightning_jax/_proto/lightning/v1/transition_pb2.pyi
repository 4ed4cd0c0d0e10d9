from lightning_jax._proto.lightning.v1 import call_pb2 as _call_pb2
from lightning_jax._proto.lightning.v1 import reward_pb2 as _reward_pb2
from lightning_jax._proto.lightning.v1 import rollout_pb2 as _rollout_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SealedSpan(_message.Message):
    __slots__ = ("scope", "otlp_span")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    OTLP_SPAN_FIELD_NUMBER: _ClassVar[int]
    scope: str
    otlp_span: bytes
    def __init__(self, scope: _Optional[str] = ..., otlp_span: _Optional[bytes] = ...) -> None: ...

class SealedAttempt(_message.Message):
    __slots__ = ("cursor", "rollout", "attempt_id", "outcome", "calls", "spans", "rewards")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    rollout: _rollout_pb2.Rollout
    attempt_id: str
    outcome: _rollout_pb2.Outcome
    calls: _containers.RepeatedCompositeFieldContainer[_call_pb2.Call]
    spans: _containers.RepeatedCompositeFieldContainer[SealedSpan]
    rewards: _containers.RepeatedCompositeFieldContainer[_reward_pb2.Reward]
    def __init__(self, cursor: _Optional[int] = ..., rollout: _Optional[_Union[_rollout_pb2.Rollout, _Mapping]] = ..., attempt_id: _Optional[str] = ..., outcome: _Optional[_Union[_rollout_pb2.Outcome, _Mapping]] = ..., calls: _Optional[_Iterable[_Union[_call_pb2.Call, _Mapping]]] = ..., spans: _Optional[_Iterable[_Union[SealedSpan, _Mapping]]] = ..., rewards: _Optional[_Iterable[_Union[_reward_pb2.Reward, _Mapping]]] = ...) -> None: ...

class StreamTransitionsRequest(_message.Message):
    __slots__ = ("consumer", "cursor")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    cursor: int
    def __init__(self, consumer: _Optional[str] = ..., cursor: _Optional[int] = ...) -> None: ...

class StreamTransitionsResponse(_message.Message):
    __slots__ = ("attempt",)
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: SealedAttempt
    def __init__(self, attempt: _Optional[_Union[SealedAttempt, _Mapping]] = ...) -> None: ...

class AckTransitionsRequest(_message.Message):
    __slots__ = ("consumer", "cursor")
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    consumer: str
    cursor: int
    def __init__(self, consumer: _Optional[str] = ..., cursor: _Optional[int] = ...) -> None: ...

class AckTransitionsResponse(_message.Message):
    __slots__ = ("cursor",)
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    def __init__(self, cursor: _Optional[int] = ...) -> None: ...
