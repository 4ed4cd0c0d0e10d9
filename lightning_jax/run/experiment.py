"""One run from plain configuration to results: builds every part, starts the circle, trains, evaluates, reports.

Knows no Hydra: `experiments/run.py` hands it plain data, `LightningServer` plain data with a study and a server that
already runs. A run that fails says so in summary.json before the error goes on, so that sweeps report it instead of
losing it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.ingest.admission import ReceiverLimits
from lightning_jax.ingest.auth import read_keys
from lightning_jax.ingest.client import IngestClient
from lightning_jax.ingest.errors import StoreUnavailable
from lightning_jax.ingest.tls import ServerTls
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.learner import Learner
from lightning_jax.learner.optimizer import OptimizerConfig
from lightning_jax.model.sharding import make_mesh
from lightning_jax.publish.checkpoint import Checkpoints
from lightning_jax.run import artifacts
from lightning_jax.run.collect import Collector
from lightning_jax.run.loop import Loop
from lightning_jax.run.metrics import MetricsWriter, read_lines
from lightning_jax.run.parts import NEUTRAL, Parts, config_hash, load_study, read_parts
from lightning_jax.run.policy import Policy, build_policy, check_learning_rate
from lightning_jax.run.progress import ProgressBoard, console
from lightning_jax.run.publisher import LocalPublisher, Publisher, RemotePublisher
from lightning_jax.run.report import next_steps, results_table
from lightning_jax.run.service import Service, sqlite_url
from lightning_jax.run.study import Study
from lightning_jax.run.warmup import warm_up
from lightning_jax.run.workers import Workers
from lightning_jax.runner import Agent

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Host:
    """A policy that a server in this process already serves; a run given one trains it in place."""

    policy: Policy
    service: Service


def run_experiment(
    config: Mapping[str, Any],
    folder: Path,
    *,
    resume: bool = False,
    allow_changed_config: bool = False,
    admin_key: str | None = None,
) -> dict[str, Any]:
    """Run `config` in `folder`; returns what summary.json holds.

    resume: go on from the folder's newest checkpoint. admin_key: of the server, this run's or the one it connects to.
    Raises ValueError where the configuration doesn't fit, or isn't the checkpoint's (unless `allow_changed_config`).
    """
    with ProgressBoard() as board:
        experiment = Experiment(
            config, folder, board, resume=resume, allow_changed_config=allow_changed_config, admin_key=admin_key
        )
        return experiment.run()


def show_results(summary: Mapping[str, Any], folder: Path) -> None:
    """The closing table on stderr's console; the folder alone goes to stdout, for scripts."""
    if summary.get("eval_after"):
        console.print(results_table(summary, summary["metric"], summary["breakdown"]))
    console.print(f"{summary['steps']} steps in {summary['wall_s']:.0f} s · config {summary['config_hash']}")
    console.print(next_steps(folder), highlight=False)


class Experiment:
    """The order of a run's acts; parts are built once and closed by the stack. `run` once; `stop` from any thread."""

    def __init__(
        self,
        config: Mapping[str, Any],
        folder: Path,
        board: ProgressBoard,
        *,
        study: Study | None = None,  # None: the one that the task section names
        agent: Agent | None = None,  # None: the one that the agent section names
        host: Host | None = None,  # None: build the policy and start a server, or connect to one
        resume: bool = False,
        allow_changed_config: bool = False,
        admin_key: str | None = None,
    ) -> None:
        check_one_process()
        self.config, self.folder, self.board = config, folder, board
        self.resume, self.allow_changed = resume, allow_changed_config
        self.parts = read_parts(config)
        self.parts.check_together()
        if self.parts.train.steps:
            check_learning_rate(config["model"], self.parts.algo, self.parts.optimizer)
        self.hash = config_hash(config)
        self._study, self._agent, self._host, self._admin_key = study, agent, host, admin_key
        self._stopping = threading.Event()
        self._client: IngestClient | None = None

    def run(self) -> dict[str, Any]:
        """All acts; returns, and writes, what summary.json holds: also where they fail, before the error goes on."""
        started = time.perf_counter()
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.resume and (self.folder / "metrics.jsonl").exists():
            raise ValueError(
                f"{self.folder} holds a run already: resume it (+resume={self.folder}), or name another folder"
            )
        config = self.config
        base = {"config_hash": self.hash, "seed": config["seed"], "name": config["name"], **config.get("choices", {})}
        artifacts.write_json(self.folder / "environment.json", artifacts.environment())
        try:
            result = self._run()
        except BaseException as error:
            result = {"status": "failed", "failure": f"{type(error).__name__}: {error}"}
            if not self._stopping.is_set() or not isinstance(error, ConnectionError | StoreUnavailable):
                raise
            result = {"status": "stopped", "steps": 0}  # before the first step: the connection was closed by stop()
        finally:
            summary = {**base, **result, "wall_s": time.perf_counter() - started}
            artifacts.write_json(self.folder / "summary.json", summary)
        return summary

    def stop(self) -> None:
        """Let `run` end after the update in flight, with a checkpoint of the last whole step; rollouts are given up."""
        self._stopping.set()
        if self._client is not None:
            self._client.close()

    def _run(self) -> dict[str, Any]:
        parts, config = self.parts, self.config
        study = parts.complete(self._study or load_study(config["task"]))
        self.board.log(
            f"{study.name}: {len(study.train)} tasks to train on, {len(study.validation)} for validation, "
            f"{len(study.test)} held out; {len(study.demonstrations)} demonstrations"
        )
        mesh = make_mesh(**parts.mesh)
        policy = self._host.policy if self._host else build_policy(config["model"], study.corpus, parts.seed, mesh=mesh)
        learner = Learner(policy.config, parts.algo, parts.batch, parts.optimizer, mesh, precision=policy.precision)
        checkpoints = Checkpoints(
            self.folder / "checkpoints",
            config_hash=f"{self.hash} seed {parts.seed}",
            settings={name: section for name, section in config.items() if name not in NEUTRAL},
            keep=parts.train.keep_checkpoints,
        )
        state, first_step = self._start_state(study, policy, learner, checkpoints)
        # nothing here may hold on to the first weights: they would take their memory until the run ends
        begun, policy = [state], replace(policy, params={})
        del state
        with ExitStack() as stack:
            metrics = MetricsWriter(self.folder, resume_from=first_step)
            stack.callback(metrics.close)
            client, publisher = stack.enter_context(self._server(policy, learner, begun, first_step))
            self._client = client
            if self._stopping.is_set():
                raise ConnectionError("stopped before the first rollout")
            if parts.train.steps > first_step:
                self._compile(learner, begun[0])
            stack.enter_context(Workers(parts.runner, self._agent or config["agent"], client.target, self._admin_key))
            label = f"{self.hash[:8]}-{parts.seed}-{time.time_ns():x}"
            collector = Collector(client, AgentNaming.of(study.agents), consumer=f"learner-{self.folder.name}")
            loop = Loop(
                folder=self.folder, label=label, seed=parts.seed, train_config=parts.train, eval_config=parts.eval,
                credit=parts.credit, baseline=parts.baseline, composition=parts.composition, study=study,
                learner=learner, publisher=publisher, collector=collector, metrics=metrics, board=self.board,
                checkpoints=checkpoints, tasks=study.task_index(),
                stopping=self._stopping,
            )  # fmt: skip
            return self._acts(loop, study, begun, first_step)

    def _acts(self, loop: Loop, study: Study, begun: list[Any], first_step: int) -> dict[str, Any]:
        """begun: the state to start from, alone; it is taken out."""
        steps = self.parts.train.steps
        before = self._evaluate_before(loop, study, first_step)
        done = loop.run(begun.pop(), first_step)
        after = before
        if done < steps:
            after = None
            self.board.log(f"stopped after step {done} of {steps}; its checkpoint is kept")
        elif steps and study.test:
            after = loop.evaluate(study.test, step=steps, split="test").summary(study.metric, study.breakdown)
            self.board.log(f"held out, after: {100 * after[study.metric]:.1f}% of {after['n']}")
        return {
            "status": "finished" if done >= steps else "stopped",
            "eval_before": before,
            "eval_after": after,
            "metric": study.metric,
            "breakdown": study.breakdown,
            "steps": done,
            "quarantined": loop.collector.quarantined,
            "train_s": sum(_seconds(line) for line in read_lines(self.folder / "timings.jsonl")),
        }

    def _evaluate_before(self, loop: Loop, study: Study, first_step: int) -> dict[str, Any] | None:
        """Held-out figures of the policy before training; a resumed run finds those of its first start."""
        path = self.folder / "eval_before.json"
        if not study.test:
            return None
        if first_step and path.exists():
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            return found
        before = loop.evaluate(study.test, step=0, split="test").summary(study.metric, study.breakdown)
        artifacts.write_json(path, before)
        self.board.log(f"held out, before: {100 * before[study.metric]:.1f}% of {before['n']}")
        return before

    def _compile(self, learner: Learner, state: Any) -> None:
        """All programs of the learner, before the first rollout waits for one; from then on a recompile is an error."""
        started = time.perf_counter()
        with self.board.line("compile", 1, keep=False):
            programs = learner.warm_up(state)
        self.board.log(
            f"compiled {programs} programs for micro-batches of {len(learner.shapes)} shapes "
            f"in {time.perf_counter() - started:.0f} s"
        )

    def _start_state(self, study: Study, policy: Policy, learner: Learner, checkpoints: Checkpoints) -> tuple[Any, int]:
        """The training state to begin with, and how many steps are done in it."""
        parts = self.parts
        if self.resume and checkpoints.latest() is not None:
            state, data = checkpoints.restore(learner.init(policy.params), allow_changed_config=self.allow_changed)
            self.board.log(f"resuming after step {data['step']}")
            return state, int(data["step"])
        params = policy.params
        if parts.warmup.enabled:
            if (path := self.config["model"].get("path")) is not None:
                raise ValueError(
                    f"warmup.enabled=true with model.path={path}: the warm-up's learning rates are for random weights "
                    "and would ruin a trained model; set warmup.enabled=false"
                )
            optimizer = OptimizerConfig(
                name=parts.warmup.optimizer,
                muon_learning_rate=parts.warmup.muon_learning_rate,
                learning_rate=parts.warmup.learning_rate,
                schedule="cosine",
                warmup_steps=parts.warmup.lr_warmup_steps,
                total_steps=parts.warmup.steps,
                weight_decay=parts.warmup.weight_decay,
                grad_clip=parts.warmup.grad_clip,
            )
            algo = AlgoConfig(aggregation="token-mean", remat=parts.algo.remat)
            teacher = Learner(policy.config, algo, parts.batch, optimizer, learner.mesh, precision=policy.precision)
            params, figures = warm_up(
                teacher,
                params,
                parts.warmup,
                policy.config,
                policy.tokenizer,
                study.demonstrations,
                parts.seed,
                self.board,
            )
            artifacts.write_json(self.folder / "warmup.json", figures)
        return learner.init(params), 0

    @contextmanager
    def _server(
        self, policy: Policy, learner: Learner, begun: Sequence[Any], version: int
    ) -> Iterator[tuple[IngestClient, Publisher]]:
        """A server in this process, or the connection to one elsewhere; it serves `begun[0]` as `version`."""
        target = self.parts.server.connect
        if target is not None or self._host is not None:
            target = target or self._host.service.addresses.grpc  # type: ignore[union-attr]  # one of the two is there
            with IngestClient(target, api_key=self._admin_key) as client:
                publisher = LocalPublisher(self._host.service) if self._host else RemotePublisher(client)
                publisher.publish(learner.served(begun[0]), version)
                yield client, publisher
            return
        service = build_service(self.parts, policy, sqlite_url(self.folder), self._admin_key)
        try:
            if self.parts.store.url is None:
                service.store.cancel_open("left behind by an earlier start of this run").result()
            addresses = service.start(
                learner.served(begun[0]), version, progress=lambda text: log.info("engine: %s", text)
            )
            self.board.log(f"policy server {addresses.http}/v1 · ingestion {addresses.grpc}")
            with IngestClient(addresses.grpc, api_key=self._admin_key) as client:
                yield client, LocalPublisher(service)
        finally:
            service.stop()


def check_one_process() -> None:
    """ValueError in one of several processes of a `jax.distributed` program: each would serve and write for all."""
    if (count := jax.process_count()) > 1:
        raise ValueError(
            f"this is process {jax.process_index()} of {count}, but a run's loop is one process: start it without "
            "jax.distributed on one host, over the devices there (mesh=fsdp8); servers and runners may be on others "
            "(server.connect, runner=external). The learner alone works over several processes, see docs/scaling.md"
        )


def build_service(
    parts: Parts, policy: Policy, default_store: str, admin_key: str | None, log_folder: Path | None = None
) -> Service:
    """The server side of a run, not yet started."""
    return Service(
        policy.config,
        policy.tokenizer,
        store_url=parts.store.url or default_store,
        engine=parts.engine,
        host=parts.server.host,
        http_port=parts.server.http_port,
        grpc_port=parts.server.grpc_port,
        advertise=parts.server.advertise,
        serve={**parts.serve, "ssl_client_ca": parts.server.tls_http_client_ca or ""},
        limits=ReceiverLimits(
            parts.server.max_pending_requests, parts.server.max_pending_spans, parts.server.max_pending_bytes
        ),
        max_rpcs=parts.server.max_rpcs,
        keys=read_keys(parts.server.keys_file),
        tls=ServerTls.of(parts.server.tls_certificate, parts.server.tls_key, parts.server.tls_client_ca),
        admin_key=admin_key,
        log_folder=log_folder,
    )


def _seconds(line: Mapping[str, Any]) -> float:
    return sum(float(value) for name, value in line.items() if name.endswith("_s"))
