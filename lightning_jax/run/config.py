"""What the loop itself needs to know, as plain frozen data. Stages have configs of their own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainConfig:
    """The reinforcement learning part of a run."""

    steps: int = 60  # optimiser steps on rollouts; 0 evaluates only
    tasks_per_step: int = 16
    samples_per_task: int = 8  # G of the group baselines
    # DAPO: groups of constant outcome leave the batch, and further tasks are drawn for them, in at most this many draws
    dynamic_sampling: int = 0  # 0: off, such groups stay; 1: they leave, and nothing is drawn for them
    temperature: float = 1.0  # top_p stays 1: truncated sampling would bias the ratios
    max_tokens: int = 48  # upper bound per call
    overlong_buffer: int | None = None  # of the reward term `overlong`: tokens before the bound; None: a fifth of it
    rollout_timeout_s: float = 120.0
    max_attempts: int = 1  # tries of a rollout whose agent fails
    checkpoint_every: int = 20  # steps; the last step is always kept
    keep_checkpoints: int = 2
    validate_every: int = 0  # steps between evaluations on the validation split; 0 never
    max_staleness: int = 0  # versions: 0 samples and updates in turns; 1 samples the next step during the update

    def __post_init__(self) -> None:
        if self.max_staleness not in (0, 1):
            raise ValueError(
                f"max_staleness={self.max_staleness} must be 0 or 1: rollouts further behind would meet new weights on "
                "their way, and no run could be repeated"
            )
        if self.dynamic_sampling < 0:
            raise ValueError(f"dynamic_sampling={self.dynamic_sampling} must be 0 (off) or the most draws of a step")
        if self.dynamic_sampling and self.samples_per_task < 2:
            raise ValueError(
                f"dynamic_sampling={self.dynamic_sampling} with samples_per_task={self.samples_per_task} would leave "
                "every group out: one sample has nothing to be compared with; set samples_per_task=8, or "
                "dynamic_sampling=0"
            )


@dataclass(frozen=True)
class EvalConfig:
    """Held-out evaluation, before and after."""

    temperature: float = 0.0  # greedy
    max_tokens: int = 48
    rollout_timeout_s: float = 120.0


@dataclass(frozen=True)
class WarmupConfig:
    """Supervised warm-up of a model that starts from nothing; off for pretrained ones."""

    enabled: bool = False
    steps: int = 300
    batch_size: int = 32  # demonstrations per step
    optimizer: str = "muon"  # muon | adamw; from random weights Muon learns to copy in a third of the steps
    muon_learning_rate: float = 0.02
    learning_rate: float = 3e-3
    lr_warmup_steps: int = 20
    weight_decay: float = 0.05
    grad_clip: float = 1.0


@dataclass(frozen=True)
class RunnerConfig:
    """Who runs the agents."""

    kind: str = "threads"  # threads | processes | subprocess | external
    concurrency: int = 32  # attempts at once, over all workers
    processes: int = 1  # worker processes where kind=processes
    lease_s: float = 60.0
    command: str = ""  # kind=subprocess: command line of the agent, told about its task by environment only


@dataclass(frozen=True)
class StoreConfig:
    """Where what was acknowledged lives."""

    url: str | None = None  # SQLAlchemy URL; None: sqlite in the run folder


@dataclass(frozen=True)
class ServerConfig:
    """Addresses of the policy server and of ingestion."""

    host: str = "127.0.0.1"
    http_port: int = 0  # 0: any free port
    grpc_port: int = 0
    advertise: str | None = None  # host name that agents elsewhere reach this machine by; None: `host`
    connect: str | None = None  # host:port of a server that already runs elsewhere; None starts one in this process
    keys_file: str | None = None  # YAML: bearer key -> list of scopes, see docs/traces.md
    tls_certificate: str | None = None  # PEM files: HTTP and gRPC are both encrypted; clients then take LJX_TLS_CA
    tls_key: str | None = None
    tls_client_ca: str | None = None  # with it, gRPC lets only clients with a certificate of this authority in
    tls_http_client_ca: str | None = None  # the same for HTTP, where few agents have certificates
    max_rpcs: int = 4096  # gRPC calls that run at a time, long polls of runners among them; more are to come back
    max_pending_requests: int = 256  # batches of spans that wait for their commit, over gRPC and HTTP together
    max_pending_spans: int = 50_000
    max_pending_bytes: int = 256 * 1024 * 1024
