from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Reward(_message.Message):
    __slots__ = ("reward_id", "rollout_id", "attempt_id", "value", "components", "call_id")
    class ComponentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    REWARD_ID_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    reward_id: str
    rollout_id: str
    attempt_id: str
    value: float
    components: _containers.ScalarMap[str, float]
    call_id: str
    def __init__(self, reward_id: _Optional[str] = ..., rollout_id: _Optional[str] = ..., attempt_id: _Optional[str] = ..., value: _Optional[float] = ..., components: _Optional[_Mapping[str, float]] = ..., call_id: _Optional[str] = ...) -> None: ...

class RecordRewardsRequest(_message.Message):
    __slots__ = ("rewards",)
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    rewards: _containers.RepeatedCompositeFieldContainer[Reward]
    def __init__(self, rewards: _Optional[_Iterable[_Union[Reward, _Mapping]]] = ...) -> None: ...

class RecordRewardsResponse(_message.Message):
    __slots__ = ("added",)
    ADDED_FIELD_NUMBER: _ClassVar[int]
    added: int
    def __init__(self, added: _Optional[int] = ...) -> None: ...
