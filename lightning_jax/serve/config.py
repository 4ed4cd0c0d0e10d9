"""Settings of the policy server: frozen, plain data, checked when built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lightning_jax.configuration import from_mapping
from lightning_jax.serve.keys import ApiKey

CONTROL_COLUMNS = ("write", "token", "position", "seed", "temperature", "top_p", "end", "active", "top")
"""Columns of the array by which the host tells the device about slots."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Shapes and scheduling of the engine. Everything that is a shape is fixed for the engine's life."""

    slots: int = 64  # S: sequences decoded at once
    max_length: int = 256  # prompt and answer together, in tokens; a multiple of prefill_chunk
    prefill_chunk: int = 16  # C: tokens of one prefill row, and the grain of the prefix cache
    prefill_rows: int = 8  # R: slots prefilled by one dispatch
    load_rows: int = 32  # chunks copied out of the prefix cache by one dispatch
    decode_steps: int = 4  # N: tokens per slot and dispatch
    prefills_per_decode: int = 16  # dispatches of prefill before running sequences get their next tokens
    prefix_cache_bytes: int = 64 * 1024 * 1024  # 0 switches it off; results are the same bit for bit
    max_queue: int = 4096  # waiting requests; more are refused
    gather_ms: float = 0.0  # a decode waits for company until none has come for so long; 0: never, and reads come late
    gather_limit_ms: float = 50.0  # and never longer than this
    cache_block: int = 0  # positions of one cache block; 0: chosen by backend and max_length
    top_logprobs: int = 20  # alternatives told at most, where a request asks for some; 0 takes them out of the program
    compute_dtype: str = "float32"
    share_weights: bool = False  # serve the learner's arrays, not copies, where dtype and device agree
    data_devices: int = 1  # devices that the slots are split over
    tensor_devices: int = 1  # devices that heads, mlp and vocabulary are split over

    def __post_init__(self) -> None:
        for name in (
            "slots",
            "max_length",
            "prefill_chunk",
            "prefill_rows",
            "load_rows",
            "decode_steps",
            "prefills_per_decode",
            "data_devices",
            "tensor_devices",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.top_logprobs < 0:
            raise ValueError(f"top_logprobs={self.top_logprobs} must be at least 0")
        if self.gather_ms < 0 or self.gather_limit_ms < self.gather_ms:
            raise ValueError(
                f"gather_ms={self.gather_ms} must be at least 0 and at most gather_limit_ms={self.gather_limit_ms}"
            )
        if self.max_length % self.prefill_chunk:
            raise ValueError(
                f"max_length={self.max_length} is no multiple of prefill_chunk={self.prefill_chunk}: "
                f"take {-(-self.max_length // self.prefill_chunk) * self.prefill_chunk}"
            )
        if self.cache_block and (self.max_length % self.cache_block or self.cache_block % self.prefill_chunk):
            raise ValueError(
                f"cache_block={self.cache_block} must divide max_length={self.max_length} and be a multiple of "
                f"prefill_chunk={self.prefill_chunk}"
            )

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> EngineConfig:
        """Build from plain data (YAML); ValueError names unknown keys."""
        return from_mapping(cls, values, where="engine")

    def block_size(self, backend: str = "cpu") -> int:
        """Positions of one cache block: about max_length/8 on CPUs, where skipping pays; all of them elsewhere."""
        if self.cache_block:
            return self.cache_block
        if backend != "cpu":
            return self.max_length
        chunks = self.max_length // self.prefill_chunk
        for count in range(min(8, chunks), 1, -1):
            if chunks % count == 0:
                return self.max_length // count
        return self.max_length


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Behaviour of the HTTP front."""

    model_name: str = "policy"  # what /v1/models lists; any name is accepted in requests
    admin_key: str = field(default="", repr=False)  # bearer key for everything; "" is none
    keys: tuple[ApiKey, ...] = ()  # more, with scopes; in YAML: name -> {key: ..., scopes: [infer, ingest, admin]}
    ssl_certfile: str = ""  # PEM files: with both, HTTP is HTTPS
    ssl_keyfile: str = ""
    ssl_client_ca: str = ""  # PEM; with it, only clients that show a certificate of this authority get in, agents too
    max_concurrent: int = 2048  # requests in progress; more are told to come back in a second
    anonymous: bool = True  # serve calls without a rollout from the loopback interface; they are not recorded
    open: bool = False  # development only: the path alone says whose call it is, no key needed
    tool_form: str = "auto"  # how the model writes tool calls: hermes | llama3 | json; auto reads the chat template
    default_max_tokens: int = 256  # where the request names none; always capped by what fits
    max_choices: int = 128  # largest n
    max_body_bytes: int = 4 * 1024 * 1024
    disconnect_grace_s: float = 15.0  # how long a generation nobody waits for goes on, so that a retry finds it
    replay_ttl_s: float = 600.0  # how long a finished answer is kept for a client's retry
    replay_capacity: int = 4096  # finished answers kept at most
    keepalive_s: float = 10.0  # silence on a stream after which a comment line is sent

    def __post_init__(self) -> None:
        if bool(self.ssl_certfile) != bool(self.ssl_keyfile):
            raise ValueError(
                f"TLS takes a certificate and its key; got ssl_certfile={self.ssl_certfile!r}, "
                f"ssl_keyfile={self.ssl_keyfile!r}"
            )
        if self.ssl_client_ca and not self.ssl_certfile:
            raise ValueError(
                f"ssl_client_ca={self.ssl_client_ca!r} asks for certificates, which takes TLS: ssl_certfile"
            )
        if self.max_concurrent < 1:
            raise ValueError(f"max_concurrent={self.max_concurrent} must be at least 1")
        if self.tool_form not in ("auto", "hermes", "llama3", "json"):
            raise ValueError(f"tool_form={self.tool_form!r} must be auto, hermes, llama3 or json")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> ServeConfig:
        """Build from plain data (YAML); ValueError names unknown keys."""
        given = values.get("keys") or {}
        if isinstance(given, Mapping):
            given = tuple(ApiKey.from_mapping(str(name), key) for name, key in given.items())
        return from_mapping(cls, {**values, "keys": given}, where="serve")
