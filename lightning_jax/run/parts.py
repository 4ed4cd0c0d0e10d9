"""A run's configuration, section by section: plain data in, checked records out; nothing is started.

Invariant: an unknown section or key never passes; what names a run's arm (`config_hash`) covers all that decides its
numbers but the seed.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lightning_jax.batch import BatchConfig
from lightning_jax.configuration import check_keys, from_mapping
from lightning_jax.credit.baseline import BaselineConfig
from lightning_jax.credit.config import CreditConfig
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.optimizer import OptimizerConfig
from lightning_jax.rewards.compose import Composition
from lightning_jax.rewards.terms import overlong
from lightning_jax.run.config import EvalConfig, RunnerConfig, ServerConfig, StoreConfig, TrainConfig, WarmupConfig
from lightning_jax.run.study import Study
from lightning_jax.serve.config import EngineConfig, ServeConfig
from lightning_jax.serve.engines import read_engine
from lightning_jax.serve.vllm.config import VllmConfig

log = logging.getLogger(__name__)

SECTIONS = (
    "name", "seed", "train", "eval", "warmup", "runner", "server", "store",
    "task", "agent", "model", "algo", "credit", "reward", "batch", "mesh", "engine", "serve", "choices",
)  # fmt: skip


# Where and by whom a run is done doesn't change its numbers (of "serve" two settings do, see _SAMPLING).
NEUTRAL = ("name", "runner", "server", "serve", "store", "choices")
_SAMPLING = ("tool_form", "default_max_tokens")  # of the section serve: what an agent is answered depends on them


def config_hash(config: Mapping[str, Any]) -> str:
    """Names what decides a run's numbers beside its seed: runs of one hash are seeds of one arm."""
    kept = {k: v for k, v in config.items() if k not in (*NEUTRAL, "seed")}
    usual = ServeConfig()
    serve = {k: v for k, v in config.get("serve", {}).items() if k in _SAMPLING and v != getattr(usual, k)}
    kept |= {"serve": serve} if serve else {}
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
    engine: EngineConfig | VllmConfig
    serve: Mapping[str, Any]  # for `ServeConfig`, whose keys are read from the environment when a server is built
    mesh: Mapping[str, int]

    def check_together(self) -> None:
        """ValueError where sections that are each right don't go together; a warning where they are rarely meant to."""
        self.credit.check_placement(pooled=self.baseline.pooled)
        if self.algo.needs_rewards:
            self._check_credited_rewards()
        self._advise()

    def _advise(self) -> None:
        """Log what is allowed and rarely meant."""
        shaping = self._trap()
        if shaping:
            log.warning(
                "reward terms %s count where the outcome %s failed, and algo.baseline.std_level=group divides by a "
                "group's standard deviation: in a group that is wrong throughout, a little shaping is worth as much as "
                "a right answer elsewhere. Set algo.baseline.std_level=none (algo=dr_grpo), or reward.form=gated, or "
                "algo.baseline.zero_variance_of=outcome (algo=dapo)",
                ", ".join(shaping),
                self.composition.outcome,
            )

    def _trap(self) -> list[str]:
        """Terms that pay where the outcome failed, in a reward of several, under a baseline that blows them up."""
        reward, baseline = self.composition, self.baseline
        exposed = baseline.std_level == "group" and baseline.zero_variance_of == "total"
        paid = [name for name, weighting in reward.terms.items() if weighting.weight]
        if self.algo.needs_rewards or not exposed or reward.form == "gated" or len(paid) < 2:
            return []
        return [name for name in paid if name != reward.outcome and reward.terms[name].gate != reward.outcome]

    def _check_credited_rewards(self) -> None:
        """What an advantage that the learner makes from credited rewards asks of the credit."""
        advantage, credit = self.algo.advantage, self.credit
        if credit.apply_to != "reward":
            mend = "credit=terminal" if self.algo.has_critic else "credit.apply_to=reward"
            raise ValueError(
                f"algo.advantage={advantage} makes advantages from credited rewards, but "
                f"credit.apply_to={credit.apply_to} hands out weights: set {mend}"
            )
        if self.baseline.mean_level != "none":
            raise ValueError(
                f"algo.baseline.mean_level={self.baseline.mean_level} is not read with algo.advantage={advantage}, "
                "which makes advantages itself: set algo.baseline.mean_level=none and std_level=none, or "
                "algo.advantage=credit"
            )
        if self.algo.has_critic and credit.unbalanced is not None and not credit.allow_double_count:
            raise ValueError(
                f"algo.advantage={advantage} adds credited rewards up along a rollout, but with {credit.unbalanced} "
                "they don't add up to the rollout's reward (credit.normalize=mean would tell the first of K calls that "
                "the rollout earned K times as much): set credit=terminal, or a strategy with credit.normalize=sum and "
                "no floor, or credit.allow_double_count=true to run this as an ablation"
            )
        if not self.algo.has_critic and credit.strategy == "terminal":
            raise ValueError(
                f"algo.advantage={advantage} takes returns within each call, but credit.strategy=terminal rewards a "
                "rollout's last call only, so that the others would learn nothing: set credit.strategy=uniform, or "
                "algo.advantage=turn_gae"
            )

    def complete(self, study: Study) -> Study:
        """`study` with the reward terms that depend on a run's limits. ValueError where the reward names another."""
        limit, buffer = self.train.max_tokens, self.train.overlong_buffer
        terms = {"overlong": overlong(limit, max(1, limit // 5) if buffer is None else buffer), **study.terms}
        self.composition.check_terms(terms)
        return replace(study, terms=terms)


def read_parts(config: Mapping[str, Any]) -> Parts:
    """Check every section that needs no data. ValueError names the section, the key and the nearest known one."""
    check_keys(config, SECTIONS, "the configuration")
    algo = dict(config["algo"])
    algo.pop("name", None)
    optimizer, baseline = algo.pop("optimizer", {}), algo.pop("baseline", {})
    train = from_mapping(TrainConfig, config["train"], where="train")
    settings = AlgoConfig.from_mapping(algo)
    if settings.aggregation_constant is None:
        settings = replace(settings, aggregation_constant=float(train.max_tokens))
    return Parts(
        seed=int(config["seed"]),
        train=train,
        eval=from_mapping(EvalConfig, config["eval"], where="eval"),
        warmup=from_mapping(WarmupConfig, config["warmup"], where="warmup"),
        runner=from_mapping(RunnerConfig, config["runner"], where="runner"),
        server=from_mapping(ServerConfig, config["server"], where="server"),
        store=from_mapping(StoreConfig, config["store"], where="store"),
        credit=CreditConfig.from_mapping(config["credit"]),
        baseline=BaselineConfig.from_mapping(baseline),
        composition=Composition.from_mapping(config["reward"]),
        algo=settings,
        optimizer=OptimizerConfig.from_mapping(optimizer),
        batch=BatchConfig.from_mapping(config["batch"]),
        engine=read_engine(config["engine"]),
        serve=_read_serve(config.get("serve", {})),
        mesh=dict(config["mesh"]),
    )


def _read_serve(values: Mapping[str, Any]) -> dict[str, Any]:
    """The section as it is, checked but for the keys' secrets. ValueError for a secret that a run folder would hold."""
    elsewhere = {"admin_key": "the environment's LJX_API_KEY"}
    elsewhere |= {"ssl_certfile": "server.tls_certificate", "ssl_keyfile": "server.tls_key"}
    elsewhere |= {"ssl_client_ca": "server.tls_http_client_ca"}
    for name, place in elsewhere.items():
        if values.get(name):
            raise ValueError(f"serve.{name} is not set here: use {place}")
    ServeConfig.from_mapping({k: v for k, v in values.items() if k != "keys"})
    for name, key in (values.get("keys") or {}).items():
        if isinstance(key, Mapping) and key.get("key"):
            raise ValueError(
                f"serve.keys.{name} holds its key, which would be written into the run's folder: give key_env, the "
                "name of an environment variable that holds it"
            )
    return {k: v for k, v in values.items() if k not in elsewhere}


def load_study(task: Mapping[str, Any]) -> Study:
    """Import the study module that `task.study` names and let it build itself from the section."""
    try:
        module = importlib.import_module(str(task["study"]))
    except ImportError as error:
        raise ValueError(f"task.study={task.get('study')!r} cannot be imported: {error}") from error
    study: Study = module.load(task)
    return study
