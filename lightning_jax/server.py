"""LightningServer: a policy server, ingestion and training as one object, for programs and for the shell.

    server = LightningServer(base_model="models/qwen2.5-coder-0.5b-instruct", reward=judge, tasks=tasks, agent=solve)
    with server.start(port=8000):
        summary = server.wait()

With tasks it trains on them in the background, by the very parts that `experiments.run` uses; without, it serves, and a
learner elsewhere trains what it serves (`server.connect=HOST:PORT`). Agents come to it: those given here as `agent`,
workers (`python -m lightning_jax.runner`), or programs with a LightningClient.

    python -m lightning_jax.server --model models/qwen2.5-coder-0.5b-instruct --port 8000 --grpc-port 50051
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from lightning_jax.export import trained_policy
from lightning_jax.garbage import spare_what_is_there
from lightning_jax.presets import settings
from lightning_jax.publish.checkpoint import Checkpoints
from lightning_jax.rewards.terms import Term
from lightning_jax.run.experiment import Experiment, Host, build_service
from lightning_jax.run.inline import Choice, corpus_of, model_of, name_of, reward_of, study_of, tasks_digest
from lightning_jax.run.parts import load_study, read_parts
from lightning_jax.run.policy import build_policy, check_learning_rate
from lightning_jax.run.progress import ProgressBoard
from lightning_jax.run.service import Addresses, Service, sqlite_url
from lightning_jax.run.study import Study
from lightning_jax.runner import Agent
from lightning_jax.types import Task

log = logging.getLogger(__name__)


class LightningServer:
    """One server; `start` once, `stop` once. All arguments but `base_model` have defaults.

    base_model: HF directory, .gguf file, name of a preset of conf/model, or the settings themselves.
    tasks: what to train on: a Study, or tasks (`Task`, or only their inputs). None serves without training.
    evaluation: held-out tasks, solved before and after (a Study has its own).
    agent: a callable run in threads here, or "package.module:function"; None leaves rollouts to workers and clients.
    reward: a function of (task, trajectory), a preset's name or a composition; None takes what clients report.
    terms: reward terms by name, beside a Study's and the generic ones of rewards/terms.py.
    algorithm, credit, batch, mesh, engine, runner: presets of conf/, or settings.
    serve: settings of the HTTP front that differ from conf/serve, e.g. {"max_concurrent": 64}.
    train, eval, warmup: settings that differ from the defaults, e.g. train={"steps": 20}.
    corpus: texts for the tokenizer of a model from scratch; None: a Study's, or the tasks' inputs.
    folder: where metrics, checkpoints, the store and lightning_server.log go.
    checkpoint: (folder of a run, "latest", "best" or a step): begin with its weights, not with those of `base_model`.
    admin_key, keys_file (YAML, bearer key -> scopes), serve["keys"]: some key is needed where others can reach `host`.
    tls_certificate, tls_key: PEM files; HTTP and gRPC are then encrypted (clients: LJX_TLS_CA).

    Raises ValueError, before anything is started, for settings that are unknown or don't go together.
    """

    def __init__(
        self,
        base_model: Choice,
        *,
        algorithm: Choice = "grpo",
        reward: Callable[..., float] | Choice | None = None,
        credit: Choice = "uniform",
        tasks: Study | Sequence[Task | Mapping[str, Any]] | None = None,
        evaluation: Sequence[Task | Mapping[str, Any]] = (),
        agent: Agent | str | None = None,
        terms: Mapping[str, Term] | None = None,
        train: Mapping[str, Any] | None = None,
        eval: Mapping[str, Any] | None = None,
        warmup: Mapping[str, Any] | None = None,
        corpus: Sequence[str] | None = None,
        batch: Choice = "trie",
        mesh: Choice = "single",
        engine: Choice = "small",
        serve: Mapping[str, Any] | None = None,
        runner: Choice | None = None,
        store: str | None = None,
        folder: str | Path | None = None,
        host: str = "127.0.0.1",
        advertise: str | None = None,
        checkpoint: tuple[Path, int | str] | None = None,
        admin_key: str | None = None,
        keys_file: str | None = None,
        tls_certificate: str | None = None,
        tls_key: str | None = None,
        seed: int = 0,
        quiet: bool = False,
    ) -> None:
        functions, composition = reward_of(reward, terms or {})
        self._study = study_of(tasks, evaluation, functions)
        self._corpus = corpus_of(corpus, self._study)
        self._agent = agent if callable(agent) else None
        count = len(self._study.train) if self._study else 0
        self.config: dict[str, Any] = {
            "name": self._study.name if self._study else "server",
            "seed": seed,
            "train": {"tasks_per_step": min(16, max(1, count)), **(train or {})},
            "eval": dict(eval or {}),
            "warmup": dict(warmup or {}),
            "runner": settings("runner", runner or ("external" if agent is None else "threads")),
            "server": {
                "host": host,
                "advertise": advertise,
                "keys_file": keys_file,
                "tls_certificate": tls_certificate,
                "tls_key": tls_key,
            },
            "store": {"url": store},
            "task": {"study": self._study.name, "tasks": tasks_digest(self._study)} if self._study else {},
            "agent": {"entry": agent if isinstance(agent, str) else name_of(agent)} if agent is not None else {},
            "model": model_of(base_model),
            "algo": settings("algo", algorithm),
            "credit": settings("credit", credit),
            "reward": composition,
            "batch": settings("batch", batch),
            "mesh": settings("mesh", mesh),
            "engine": settings("engine", engine),
            "serve": dict(serve or {}),
            "choices": {},
        }
        parts = read_parts(self.config)
        if self._study is not None and parts.train.steps:
            check_learning_rate(self.config["model"], parts.algo, parts.optimizer)
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
        self.folder = Path(folder) if folder is not None else Path("runs") / self.config["name"] / stamp
        self._admin_key, self._quiet, self._checkpoint = admin_key, quiet, checkpoint
        self._service: Service | None = None
        self._experiment: Experiment | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self.summary: dict[str, Any] | None = None  # what summary.json holds, once training has ended

    def start(self, port: int = 8000, grpc_port: int = 0, *, resume: bool = False) -> LightningServer:
        """Serve, and train in the background where there are tasks; returns once agents can call.

        Ports: 0 takes a free one (`url` and `grpc_target` tell; clients ask /healthcheck for the second). resume: go on
        from the newest checkpoint in `folder`. Raises OSError or RuntimeError where a port is taken.
        """
        if self._service is not None:
            raise RuntimeError("this server was started before; make a new one to start again")
        self.folder.mkdir(parents=True, exist_ok=True)
        values = {**self.config["server"], "http_port": port, "grpc_port": grpc_port}
        parts = read_parts({**self.config, "server": values})
        if self._checkpoint is None:
            policy = build_policy(self.config["model"], self._corpus, parts.seed)
        else:
            policy, step = trained_policy(*self._checkpoint)
            log.info("weights: the checkpoint of step %d in %s", step, self._checkpoint[0])
        service = build_service(parts, policy, sqlite_url(self.folder), self._admin_key, self.folder)
        self._service = service
        try:
            service.start(policy.params, progress=lambda text: log.info("engine: %s", text))
        except BaseException:
            service.stop()
            raise
        if self._study is not None:
            board = ProgressBoard(quiet=self._quiet)
            self._experiment = Experiment(
                self.config, self.folder, board, study=self._study, agent=self._agent, host=Host(policy, service),
                resume=resume, admin_key=self._admin_key,
            )  # fmt: skip
            self._thread = threading.Thread(
                target=self._train, args=(board, self._experiment), name="training", daemon=True
            )
            self._thread.start()
        return self

    def wait(self, timeout_s: float | None = None) -> dict[str, Any]:
        """Until training has ended; returns its summary, or raises what it failed of. TimeoutError after `timeout_s`.

        ValueError where there is nothing to train on.
        """
        if self._thread is None:
            raise ValueError("this server trains nothing: give it tasks and start it")
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"training has not ended within {timeout_s:g} s")
        if self._failure is not None:
            raise self._failure
        assert self.summary is not None
        return self.summary

    def stop(self) -> None:
        """End training at its next whole step (with a checkpoint), then drain and close. Harmless if repeated."""
        if self._experiment is not None:
            self._experiment.stop()
        if self._thread is not None:
            self._thread.join()
        service, self._service = self._service, None
        if service is not None:
            service.stop()

    def __enter__(self) -> LightningServer:
        return self if self._service is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Root of the HTTP server; a LightningClient's endpoint. OpenAI clients take `url + "/v1"`."""
        return self._addresses.http

    @property
    def grpc_target(self) -> str:
        """host:port of ingestion, for workers and remote learners."""
        return self._addresses.grpc

    @property
    def _addresses(self) -> Addresses:
        if self._service is None:
            raise ValueError("the server is not running: call start() first")
        return self._service.addresses

    def _train(self, board: ProgressBoard, experiment: Experiment) -> None:
        try:
            with board:
                self.summary = experiment.run()
        except BaseException as failure:  # it belongs to whoever waits
            log.error("training failed: %s", failure)
            self._failure = failure


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lightning_jax.server",
        description="Serve a policy: OpenAI's HTTP API for agents, gRPC for workers, traces and learners.",
        epilog="The admin key is taken from LJX_API_KEY. A learner elsewhere trains it by `server.connect=HOST:PORT`.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="HF directory, .gguf file, or a preset of conf/model")
    source.add_argument(
        "--config", help="a run's configuration (its folder or config.yaml): serve that run's model with its settings"
    )
    parser.add_argument(
        "--checkpoint",
        help="of the run in --config: latest, best (by validation score), a step, or start for the weights that it "
        "began with (default: latest where there is one)",
    )
    parser.add_argument("--host", default="127.0.0.1", help="default %(default)s; others need LJX_API_KEY")
    parser.add_argument("--advertise", help="host name that agents elsewhere reach this machine by")
    parser.add_argument("--keys-file", help="YAML, bearer key -> scopes (infer, ingest, admin, ...)")
    parser.add_argument("--tls-certificate", help="PEM file; with --tls-key, HTTP and gRPC are encrypted")
    parser.add_argument("--tls-key", help="PEM file")
    parser.add_argument("--port", type=int, default=8000, help="HTTP, default %(default)s; 0: any free")
    parser.add_argument("--grpc-port", type=int, default=50051, help="default %(default)s; 0: any free")
    parser.add_argument("--engine", help="preset of conf/engine (default: small, or the configuration's)")
    parser.add_argument(
        "--serve", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of conf/serve, in YAML, e.g. max_concurrent=64; may be repeated",
    )  # fmt: skip
    parser.add_argument("--store", help="SQLAlchemy URL of the store; default: SQLite in --folder")
    parser.add_argument("--folder", default="runs/server", help="where the default store lies (default %(default)s)")
    return parser


def _source(options: argparse.Namespace) -> dict[str, Any]:
    """Model, engine, front, corpus, seed and checkpoint by the command line, or by the configuration that it names."""
    serve = dict(_setting(text) for text in options.serve)
    if not options.config:
        if options.checkpoint:
            raise ValueError(f"--checkpoint {options.checkpoint} is one of a run: name the run by --config")
        return {"base_model": options.model, "engine": options.engine or "small", "serve": serve}
    place = Path(options.config)
    place = place / "config.yaml" if place.is_dir() else place
    values: dict[str, Any] = yaml.safe_load(place.read_text(encoding="utf-8"))
    model = values["model"]
    return {
        "base_model": model,
        "engine": options.engine or values["engine"],
        "serve": {**values.get("serve", {}), **serve},
        "corpus": () if model.get("path") else load_study(values["task"]).corpus,
        "seed": int(values["seed"]),
        "checkpoint": _checkpoint(place.parent, options.checkpoint),
    }


def _checkpoint(folder: Path, wanted: str | None) -> tuple[Path, int | str] | None:
    """Which weights of a run to serve, said in a line; None: those it began with."""
    steps = Checkpoints(folder / "checkpoints", config_hash="").steps() if (folder / "checkpoints").is_dir() else []
    if wanted == "start" or (wanted is None and not steps):
        log.info("weights: those that the run began with%s", "" if steps else "; it has no checkpoint")
        return None
    return folder, wanted or "latest"


def _setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value in YAML."""
    name, mark, value = text.partition("=")
    if not mark:
        raise ValueError(f"--serve {text!r} has no value: write --serve NAME=VALUE")
    return name, yaml.safe_load(value)


def main(argv: list[str] | None = None) -> int:
    """The command line; serves until SIGINT or SIGTERM, then drains."""
    options = _parser().parse_args(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s", force=True)
    log.setLevel(logging.INFO)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    try:
        server = LightningServer(
            **_source(options), store=options.store, folder=options.folder,
            host=options.host, advertise=options.advertise, admin_key=os.environ.get("LJX_API_KEY") or None,
            keys_file=options.keys_file, tls_certificate=options.tls_certificate, tls_key=options.tls_key,
        )  # fmt: skip
        server.start(options.port, options.grpc_port)
    except (ValueError, OSError, RuntimeError) as error:
        log.error("%s", error)
        return 2
    log.info("serving %s/v1, ingestion on %s", server.url, server.grpc_target)
    spare_what_is_there()
    ended.wait()
    log.info("draining")
    server.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
