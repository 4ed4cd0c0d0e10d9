"""The tables of the store.

Token ids are little-endian int32 BLOBs and log-probs little-endian float32 BLOBs: exact, and no JSON numbers.
Ids that define an order (rollouts.position, spans.id, rewards.id, sealed.cursor) never get reused.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

SCHEMA_VERSION = 4  # grows with every change below; migrations/ has the way from the version before

# SQLite gives autoincrement to INTEGER only; 64 bits there anyway.
_Serial = BigInteger().with_variant(Integer(), "sqlite")

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", String, primary_key=True),
    Column("value", String, nullable=False),
)

rollouts = Table(
    "rollouts",
    metadata,
    Column("position", _Serial, primary_key=True, autoincrement=True),  # order of enqueue
    Column("rollout_id", String, nullable=False, unique=True),
    Column("task_id", String, nullable=False),
    Column("sample", Integer, nullable=False),
    Column("mode", String, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("timeout_s", Float, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("input", Text, nullable=False),  # JSON
    Column("sampling", Text, nullable=False),  # JSON of SamplingDefaults
    Column("state", String, nullable=False),  # queued | running | sealed
    Column("attempts", Integer, nullable=False),  # how many were started
    Index("rollouts_by_state", "state", "position"),
    sqlite_autoincrement=True,
)

attempts = Table(
    "attempts",
    metadata,
    Column("attempt_id", String, primary_key=True),
    Column("rollout_id", String, nullable=False, index=True),
    Column("number", Integer, nullable=False),
    Column("key_hash", LargeBinary(32), nullable=False, unique=True),  # sha256 of the bearer token
    Column("worker_id", String, nullable=False),
    Column("claim_id", String, nullable=False, index=True),  # idempotency key of the claim
    Column("status", String, nullable=False),  # running | an AttemptStatus
    Column("lease_s", Float, nullable=False),
    Column("lease_until_ns", BigInteger, nullable=False),
    Column("started_ns", BigInteger, nullable=False),
    Column("ended_ns", BigInteger),
    Column("output", Text),  # JSON
    Column("reason", Text),
    Index("attempts_by_lease", "status", "lease_until_ns"),
)

calls = Table(
    "calls",
    metadata,
    Column("call_id", String, primary_key=True),
    Column("rollout_id", String, nullable=False),
    Column("attempt_id", String, nullable=False),
    Column("sequence", Integer, nullable=False),
    Column("prompt_ids", LargeBinary, nullable=False),
    Column("response_ids", LargeBinary, nullable=False),
    Column("rollout_logps", LargeBinary, nullable=False),
    Column("sampling", Text, nullable=False),  # JSON of SamplingParams
    Column("policy_version", BigInteger, nullable=False),
    Column("finish_reason", String, nullable=False),
    Column("agent_key", String, nullable=False),
    Column("started_ns", BigInteger, nullable=False),
    Column("ended_ns", BigInteger, nullable=False),
    Column("request", Text, nullable=False),  # JSON body as received
    Column("text", Text, nullable=False),
    Column("tool_calls", Text),  # JSON of IssuedToolCall; NULL: not told
    Column("request_key", String, nullable=False, server_default=""),
    Column("delivered_ns", BigInteger, nullable=False, server_default="0"),
    Column("superseded_by", String, nullable=False, server_default=""),
    Index("calls_by_attempt", "attempt_id", "sequence"),
)

spans = Table(
    "spans",
    metadata,
    Column("id", _Serial, primary_key=True, autoincrement=True),
    Column("trace_id", LargeBinary(16), nullable=False),
    Column("span_id", LargeBinary(8), nullable=False),
    Column("parent_id", LargeBinary(8), nullable=False),
    Column("rollout_id", String, nullable=False),
    Column("attempt_id", String, nullable=False),
    Column("name", Text, nullable=False),
    Column("scope", Text, nullable=False),
    Column("start_ns", BigInteger, nullable=False),
    Column("end_ns", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    UniqueConstraint("trace_id", "span_id"),
    Index("spans_by_attempt", "attempt_id", "id"),
    # Tiny: by it every batch asks for spans of its traces that nobody could place.
    Index("spans_unplaced", "trace_id", sqlite_where=text("rollout_id = ''"), postgresql_where=text("rollout_id = ''")),
    sqlite_autoincrement=True,
)

rewards = Table(
    "rewards",
    metadata,
    Column("id", _Serial, primary_key=True, autoincrement=True),
    Column("reward_id", String, nullable=False, unique=True),
    Column("rollout_id", String, nullable=False),
    Column("attempt_id", String, nullable=False),
    Column("value", Float),
    Column("components", Text, nullable=False),  # JSON
    Column("call_id", String, nullable=False),
    Index("rewards_by_attempt", "attempt_id", "id"),
    sqlite_autoincrement=True,
)

sealed = Table(
    "sealed",
    metadata,
    Column("cursor", _Serial, primary_key=True, autoincrement=True),
    Column("rollout_id", String, nullable=False, unique=True),
    Column("attempt_id", String, nullable=False),  # "" where the rollout was cancelled before any attempt
    Column("status", String, nullable=False),
    Column("output", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("last_span", BigInteger, nullable=False),  # spans that came later are not part of the sealed record
    Column("last_reward", BigInteger, nullable=False),
    Column("sealed_ns", BigInteger, nullable=False),
    sqlite_autoincrement=True,
)

consumers = Table(
    "consumers",
    metadata,
    Column("name", String, primary_key=True),
    Column("cursor", BigInteger, nullable=False),  # everything up to here is consumed for good
)

policies = Table(
    "policies",
    metadata,
    Column("version", BigInteger, primary_key=True),
    Column("digest", String, nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("published_ns", BigInteger, nullable=False),
)

quarantine = Table(
    "quarantine",
    metadata,
    Column("id", _Serial, primary_key=True, autoincrement=True),
    Column("kind", String, nullable=False),  # span | call | reward
    Column("identity", String, nullable=False),
    Column("reason", String, nullable=False),  # a short fixed word, to be counted by
    Column("detail", Text, nullable=False),
    Column("received_ns", BigInteger, nullable=False),
    Column("attempt", String, nullable=False, server_default=""),  # what a span named that was not known yet
    UniqueConstraint("kind", "identity", "reason"),
    Index(
        "quarantine_by_attempt",
        "attempt",
        sqlite_where=text("attempt != ''"),
        postgresql_where=text("attempt != ''"),
    ),
    sqlite_autoincrement=True,
)
