from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODE_UNSPECIFIED: _ClassVar[Mode]
    MODE_TRAIN: _ClassVar[Mode]
    MODE_EVAL: _ClassVar[Mode]

class AttemptStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTEMPT_STATUS_UNSPECIFIED: _ClassVar[AttemptStatus]
    ATTEMPT_STATUS_SUCCEEDED: _ClassVar[AttemptStatus]
    ATTEMPT_STATUS_FAILED: _ClassVar[AttemptStatus]
    ATTEMPT_STATUS_TIMEOUT: _ClassVar[AttemptStatus]
    ATTEMPT_STATUS_CRASHED: _ClassVar[AttemptStatus]
    ATTEMPT_STATUS_CANCELLED: _ClassVar[AttemptStatus]
    ATTEMPT_STATUS_LOST: _ClassVar[AttemptStatus]

class RolloutState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLLOUT_STATE_UNSPECIFIED: _ClassVar[RolloutState]
    ROLLOUT_STATE_QUEUED: _ClassVar[RolloutState]
    ROLLOUT_STATE_RUNNING: _ClassVar[RolloutState]
    ROLLOUT_STATE_SEALED: _ClassVar[RolloutState]

class Disposition(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DISPOSITION_UNSPECIFIED: _ClassVar[Disposition]
    DISPOSITION_SEALED: _ClassVar[Disposition]
    DISPOSITION_REQUEUED: _ClassVar[Disposition]
    DISPOSITION_ALREADY_ENDED: _ClassVar[Disposition]
MODE_UNSPECIFIED: Mode
MODE_TRAIN: Mode
MODE_EVAL: Mode
ATTEMPT_STATUS_UNSPECIFIED: AttemptStatus
ATTEMPT_STATUS_SUCCEEDED: AttemptStatus
ATTEMPT_STATUS_FAILED: AttemptStatus
ATTEMPT_STATUS_TIMEOUT: AttemptStatus
ATTEMPT_STATUS_CRASHED: AttemptStatus
ATTEMPT_STATUS_CANCELLED: AttemptStatus
ATTEMPT_STATUS_LOST: AttemptStatus
ROLLOUT_STATE_UNSPECIFIED: RolloutState
ROLLOUT_STATE_QUEUED: RolloutState
ROLLOUT_STATE_RUNNING: RolloutState
ROLLOUT_STATE_SEALED: RolloutState
DISPOSITION_UNSPECIFIED: Disposition
DISPOSITION_SEALED: Disposition
DISPOSITION_REQUEUED: Disposition
DISPOSITION_ALREADY_ENDED: Disposition

class SamplingDefaults(_message.Message):
    __slots__ = ("temperature", "top_p", "max_tokens")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    max_tokens: int
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class Rollout(_message.Message):
    __slots__ = ("rollout_id", "task_id", "sample", "mode", "seed", "input_json", "sampling", "step", "timeout_s", "max_attempts")
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    INPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    rollout_id: str
    task_id: str
    sample: int
    mode: Mode
    seed: int
    input_json: str
    sampling: SamplingDefaults
    step: int
    timeout_s: float
    max_attempts: int
    def __init__(self, rollout_id: _Optional[str] = ..., task_id: _Optional[str] = ..., sample: _Optional[int] = ..., mode: _Optional[_Union[Mode, str]] = ..., seed: _Optional[int] = ..., input_json: _Optional[str] = ..., sampling: _Optional[_Union[SamplingDefaults, _Mapping]] = ..., step: _Optional[int] = ..., timeout_s: _Optional[float] = ..., max_attempts: _Optional[int] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ("rollout", "attempt_id", "number", "base_url", "api_key", "lease_s")
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BASE_URL_FIELD_NUMBER: _ClassVar[int]
    API_KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    rollout: Rollout
    attempt_id: str
    number: int
    base_url: str
    api_key: str
    lease_s: float
    def __init__(self, rollout: _Optional[_Union[Rollout, _Mapping]] = ..., attempt_id: _Optional[str] = ..., number: _Optional[int] = ..., base_url: _Optional[str] = ..., api_key: _Optional[str] = ..., lease_s: _Optional[float] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("status", "output_json", "reason")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_JSON_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    status: AttemptStatus
    output_json: str
    reason: str
    def __init__(self, status: _Optional[_Union[AttemptStatus, str]] = ..., output_json: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RolloutProgress(_message.Message):
    __slots__ = ("rollout_id", "state", "attempts", "status")
    ROLLOUT_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    rollout_id: str
    state: RolloutState
    attempts: int
    status: AttemptStatus
    def __init__(self, rollout_id: _Optional[str] = ..., state: _Optional[_Union[RolloutState, str]] = ..., attempts: _Optional[int] = ..., status: _Optional[_Union[AttemptStatus, str]] = ...) -> None: ...

class EnqueueRolloutsRequest(_message.Message):
    __slots__ = ("rollouts",)
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    rollouts: _containers.RepeatedCompositeFieldContainer[Rollout]
    def __init__(self, rollouts: _Optional[_Iterable[_Union[Rollout, _Mapping]]] = ...) -> None: ...

class EnqueueRolloutsResponse(_message.Message):
    __slots__ = ("added",)
    ADDED_FIELD_NUMBER: _ClassVar[int]
    added: int
    def __init__(self, added: _Optional[int] = ...) -> None: ...

class ClaimRolloutsRequest(_message.Message):
    __slots__ = ("worker_id", "max_rollouts", "lease_s", "wait_s", "claim_id", "rollout_ids")
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    CLAIM_ID_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_IDS_FIELD_NUMBER: _ClassVar[int]
    worker_id: str
    max_rollouts: int
    lease_s: float
    wait_s: float
    claim_id: str
    rollout_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, worker_id: _Optional[str] = ..., max_rollouts: _Optional[int] = ..., lease_s: _Optional[float] = ..., wait_s: _Optional[float] = ..., claim_id: _Optional[str] = ..., rollout_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ClaimRolloutsResponse(_message.Message):
    __slots__ = ("attempts",)
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    attempts: _containers.RepeatedCompositeFieldContainer[Attempt]
    def __init__(self, attempts: _Optional[_Iterable[_Union[Attempt, _Mapping]]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("attempt_ids",)
    ATTEMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    attempt_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, attempt_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("ended_attempt_ids",)
    ENDED_ATTEMPT_IDS_FIELD_NUMBER: _ClassVar[int]
    ended_attempt_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ended_attempt_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CompleteAttemptRequest(_message.Message):
    __slots__ = ("attempt_id", "outcome")
    ATTEMPT_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    attempt_id: str
    outcome: Outcome
    def __init__(self, attempt_id: _Optional[str] = ..., outcome: _Optional[_Union[Outcome, _Mapping]] = ...) -> None: ...

class CompleteAttemptResponse(_message.Message):
    __slots__ = ("disposition",)
    DISPOSITION_FIELD_NUMBER: _ClassVar[int]
    disposition: Disposition
    def __init__(self, disposition: _Optional[_Union[Disposition, str]] = ...) -> None: ...

class CancelRolloutsRequest(_message.Message):
    __slots__ = ("rollout_ids", "reason")
    ROLLOUT_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    rollout_ids: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, rollout_ids: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class CancelRolloutsResponse(_message.Message):
    __slots__ = ("cancelled",)
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    cancelled: int
    def __init__(self, cancelled: _Optional[int] = ...) -> None: ...

class GetRolloutsRequest(_message.Message):
    __slots__ = ("rollout_ids",)
    ROLLOUT_IDS_FIELD_NUMBER: _ClassVar[int]
    rollout_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rollout_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GetRolloutsResponse(_message.Message):
    __slots__ = ("rollouts",)
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    rollouts: _containers.RepeatedCompositeFieldContainer[RolloutProgress]
    def __init__(self, rollouts: _Optional[_Iterable[_Union[RolloutProgress, _Mapping]]] = ...) -> None: ...
