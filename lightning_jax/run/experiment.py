"""One run from plain configuration to results: builds every part, starts the circle, trains, evaluates, reports.

Knows no Hydra: `experiments/run.py` and `LightningServer` hand it plain data. A run that fails says so in summary.json
before the error goes on, so that sweeps report it instead of losing it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.batch import BatchConfig
from lightning_jax.configuration import check_keys, from_mapping
from lightning_jax.credit.baseline import BaselineConfig
from lightning_jax.credit.config import CreditConfig
from lightning_jax.ingest.client import IngestClient
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.learner import Learner
from lightning_jax.learner.optimizer import OptimizerConfig
from lightning_jax.model.sharding import make_mesh
from lightning_jax.publish.checkpoint import Checkpoints
from lightning_jax.rewards.compose import Composition
from lightning_jax.run import artifacts
from lightning_jax.run.collect import Collector
from lightning_jax.run.config import EvalConfig, RunnerConfig, ServerConfig, StoreConfig, TrainConfig, WarmupConfig
from lightning_jax.run.loop import Loop
from lightning_jax.run.metrics import MetricsWriter, read_lines
from lightning_jax.run.policy import Policy, build_policy
from lightning_jax.run.progress import ProgressBoard, console
from lightning_jax.run.publisher import LocalPublisher, Publisher, RemotePublisher
from lightning_jax.run.report import next_steps, results_table
from lightning_jax.run.service import Service, sqlite_url
from lightning_jax.run.study import Study
from lightning_jax.run.warmup import warm_up
from lightning_jax.run.workers import Workers
from lightning_jax.serve.config import EngineConfig

log = logging.getLogger(__name__)

SECTIONS = (
    "name", "seed", "train", "eval", "warmup", "runner", "server", "store",
    "task", "agent", "model", "algo", "credit", "reward", "batch", "mesh", "engine", "choices",
)  # fmt: skip


NEUTRAL = ("name", "runner", "server", "store", "choices")  # where and by whom a run is done doesn't change its numbers


def config_hash(config: Mapping[str, Any]) -> str:
    """Names what decides a run's numbers beside its seed: runs of one hash are seeds of one arm."""
    kept = {k: v for k, v in config.items() if k not in (*NEUTRAL, "seed")}
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class Parts:
    """A configuration's sections, read and checked before anything is started."""

    seed: int
    train: TrainConfig
    eval: EvalConfig
    warmup: WarmupConfig
    runner: RunnerConfig
    server: ServerConfig
    store: StoreConfig
    credit: CreditConfig
    baseline: BaselineConfig
    composition: Composition
    algo: AlgoConfig
    optimizer: OptimizerConfig
    batch: BatchConfig
    engine: EngineConfig
    mesh: Mapping[str, int]


def read_parts(config: Mapping[str, Any]) -> Parts:
    """Check every section that needs no data. ValueError names the section, the key and the nearest known one."""
    check_keys(config, SECTIONS, "the configuration")
    algo = dict(config["algo"])
    algo.pop("name", None)
    optimizer, baseline = algo.pop("optimizer", {}), algo.pop("baseline", {})
    return Parts(
        seed=int(config["seed"]),
        train=from_mapping(TrainConfig, config["train"], where="train"),
        eval=from_mapping(EvalConfig, config["eval"], where="eval"),
        warmup=from_mapping(WarmupConfig, config["warmup"], where="warmup"),
        runner=from_mapping(RunnerConfig, config["runner"], where="runner"),
        server=from_mapping(ServerConfig, config["server"], where="server"),
        store=from_mapping(StoreConfig, config["store"], where="store"),
        credit=CreditConfig.from_mapping(config["credit"]),
        baseline=BaselineConfig.from_mapping(baseline),
        composition=Composition.from_mapping(config["reward"]),
        algo=AlgoConfig.from_mapping(algo),
        optimizer=OptimizerConfig.from_mapping(optimizer),
        batch=BatchConfig.from_mapping(config["batch"]),
        engine=EngineConfig.from_mapping(config["engine"]),
        mesh=dict(config["mesh"]),
    )


def load_study(task: Mapping[str, Any]) -> Study:
    """Import the study module that `task.study` names and let it build itself from the section."""
    try:
        module = importlib.import_module(str(task["study"]))
    except ImportError as error:
        raise ValueError(f"task.study={task.get('study')!r} cannot be imported: {error}") from error
    study: Study = module.load(task)
    return study


def run_experiment(
    config: Mapping[str, Any], folder: Path, *, resume: bool = False, allow_changed_config: bool = False
) -> dict[str, Any]:
    """Run `config` in `folder`; returns what summary.json holds.

    resume: go on from the folder's newest checkpoint. Raises ValueError where the configuration doesn't fit, or isn't
    the checkpoint's (unless `allow_changed_config`).
    """
    started = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    base = {"config_hash": config_hash(config), "seed": config["seed"], "name": config["name"], **config.get("choices", {})}
    artifacts.write_json(folder / "environment.json", artifacts.environment())
    try:
        with ProgressBoard() as board:
            result = _Experiment(config, folder, board, resume, allow_changed_config).run()
    except BaseException as error:
        failure = f"{type(error).__name__}: {error}"
        wall = time.perf_counter() - started
        artifacts.write_json(folder / "summary.json", {**base, "status": "failed", "failure": failure, "wall_s": wall})
        raise
    summary = {**base, **result, "status": "finished", "wall_s": time.perf_counter() - started}
    artifacts.write_json(folder / "summary.json", summary)
    return summary


def show_results(summary: Mapping[str, Any], folder: Path) -> None:
    """The closing table on stderr's console; the folder alone goes to stdout, for scripts."""
    if summary.get("eval_after"):
        console.print(results_table(summary, summary["metric"], summary["breakdown"]))
    console.print(f"{summary['steps']} steps in {summary['wall_s']:.0f} s · config {summary['config_hash']}")
    console.print(next_steps(folder), highlight=False)


class _Experiment:
    """The order of a run's acts; each part is built once and closed by the stack."""

    def __init__(
        self, config: Mapping[str, Any], folder: Path, board: ProgressBoard, resume: bool, allow_changed: bool
    ) -> None:
        self.config, self.folder, self.board = config, folder, board
        self.resume, self.allow_changed = resume, allow_changed
        self.parts = read_parts(config)
        self.hash = config_hash(config)

    def run(self) -> dict[str, Any]:
        parts = self.parts
        study = load_study(self.config["task"])
        parts.composition.check_terms(study.terms)
        self.board.log(
            f"{study.name}: {len(study.train)} tasks to train on, {len(study.validation)} for validation, "
            f"{len(study.test)} held out; {len(study.demonstrations)} demonstrations"
        )
        policy = build_policy(self.config["model"], study.corpus, parts.seed)
        mesh = make_mesh(**parts.mesh)
        learner = Learner(policy.config, parts.algo, parts.batch, parts.optimizer, mesh, precision=policy.precision)
        checkpoints = Checkpoints(
            self.folder / "checkpoints", config_hash=f"{self.hash} seed {parts.seed}", keep=parts.train.keep_checkpoints
        )
        state, first_step = self._start_state(study, policy, learner, checkpoints)
        with ExitStack() as stack:
            metrics = MetricsWriter(self.folder, resume_from=first_step if self.resume else None)
            stack.callback(metrics.close)
            client, publisher = stack.enter_context(self._server(policy, state, first_step))
            stack.enter_context(Workers(parts.runner, self.config["agent"], client.target))
            label = f"{self.folder.name}-{time.time_ns():x}"
            loop = Loop(
                folder=self.folder, label=label, seed=parts.seed, train_config=parts.train, eval_config=parts.eval,
                credit=parts.credit, baseline=parts.baseline, composition=parts.composition, study=study,
                learner=learner, publisher=publisher, collector=Collector(client, AgentNaming.of(study.agents), consumer=label),
                metrics=metrics, board=self.board, checkpoints=checkpoints, tasks=study.task_index(),
            )  # fmt: skip
            return self._acts(loop, study, state, first_step)

    def _acts(self, loop: Loop, study: Study, state: Any, first_step: int) -> dict[str, Any]:
        before_path = self.folder / "eval_before.json"
        if first_step and before_path.exists():
            before = json.loads(before_path.read_text(encoding="utf-8"))
        else:
            before = loop.evaluate(study.test, step=0, split="test").summary(study.metric, study.breakdown)
            artifacts.write_json(before_path, before)
        self.board.log(f"held out, before: {100 * before[study.metric]:.1f}% of {before['n']}")
        loop.run(state, first_step)
        steps = self.parts.train.steps
        after = before
        if steps:
            after = loop.evaluate(study.test, step=steps, split="test").summary(study.metric, study.breakdown)
            self.board.log(f"held out, after: {100 * after[study.metric]:.1f}% of {after['n']}")
        return {
            "eval_before": before,
            "eval_after": after,
            "metric": study.metric,
            "breakdown": study.breakdown,
            "steps": steps,
            "quarantined": loop.collector.quarantined,
            "train_s": sum(_seconds(line) for line in read_lines(self.folder / "timings.jsonl")),
        }

    def _start_state(
        self, study: Study, policy: Policy, learner: Learner, checkpoints: Checkpoints
    ) -> tuple[Any, int]:
        """The training state to begin with, and how many steps are done in it."""
        parts = self.parts
        if self.resume and checkpoints.latest() is not None:
            state, data = checkpoints.restore(learner.init(policy.params), allow_changed_config=self.allow_changed)
            self.board.log(f"resuming after step {data['step']}")
            return state, int(data["step"])
        params = policy.params
        if parts.warmup.enabled:
            optimizer = OptimizerConfig(
                learning_rate=parts.warmup.learning_rate,
                schedule="cosine",
                warmup_steps=parts.warmup.lr_warmup_steps,
                total_steps=parts.warmup.steps,
                weight_decay=parts.warmup.weight_decay,
                grad_clip=parts.warmup.grad_clip,
            )
            algo = AlgoConfig(aggregation="token-mean")
            teacher = Learner(policy.config, algo, parts.batch, optimizer, learner.mesh, precision=policy.precision)
            params, figures = warm_up(
                teacher, params, parts.warmup, policy.config, policy.tokenizer, study.demonstrations, parts.seed, self.board
            )
            artifacts.write_json(self.folder / "warmup.json", figures)
        return learner.init(params), 0

    @contextmanager
    def _server(self, policy: Policy, state: Any, version: int) -> Iterator[tuple[IngestClient, Publisher]]:
        """A server in this process, or the connection to one elsewhere; serves `state` as `version` when it yields."""
        parts = self.parts
        if parts.server.connect is not None:
            with IngestClient(parts.server.connect) as client:
                remote = RemotePublisher(client)
                remote.publish(state["params"], version)
                yield client, remote
            return
        service = Service(
            policy.config,
            policy.tokenizer,
            store_url=parts.store.url or sqlite_url(self.folder),
            engine=parts.engine,
            host=parts.server.host,
            http_port=parts.server.http_port,
            grpc_port=parts.server.grpc_port,
        )
        try:
            addresses = service.start(state["params"], version, progress=lambda text: log.info("engine: %s", text))
            self.board.log(f"policy server {addresses.http}/v1 · ingestion {addresses.grpc}")
            with IngestClient(addresses.grpc) as client:
                yield client, LocalPublisher(service)
        finally:
            service.stop()


def _seconds(line: Mapping[str, Any]) -> float:
    return sum(value for name, value in line.items() if name.endswith("_s"))
