from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PolicyVersion(_message.Message):
    __slots__ = ("version", "digest", "step")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    version: int
    digest: str
    step: int
    def __init__(self, version: _Optional[int] = ..., digest: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class PolicyHeader(_message.Message):
    __slots__ = ("policy", "format", "size_bytes", "content_digest")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONTENT_DIGEST_FIELD_NUMBER: _ClassVar[int]
    policy: PolicyVersion
    format: str
    size_bytes: int
    content_digest: str
    def __init__(self, policy: _Optional[_Union[PolicyVersion, _Mapping]] = ..., format: _Optional[str] = ..., size_bytes: _Optional[int] = ..., content_digest: _Optional[str] = ...) -> None: ...

class PublishPolicyRequest(_message.Message):
    __slots__ = ("header", "chunk")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    header: PolicyHeader
    chunk: bytes
    def __init__(self, header: _Optional[_Union[PolicyHeader, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class PublishPolicyResponse(_message.Message):
    __slots__ = ("already_published",)
    ALREADY_PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    already_published: bool
    def __init__(self, already_published: bool = ...) -> None: ...

class GetPolicyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetPolicyResponse(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: PolicyVersion
    def __init__(self, policy: _Optional[_Union[PolicyVersion, _Mapping]] = ...) -> None: ...

class WatchPolicyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WatchPolicyResponse(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: PolicyVersion
    def __init__(self, policy: _Optional[_Union[PolicyVersion, _Mapping]] = ...) -> None: ...
