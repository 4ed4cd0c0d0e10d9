"""The learner: transitions in, a new train state and metrics out.

Invariants: the same state and transitions give the same bits, in whatever order the transitions come; micro-batch size,
padding, packing and sharding don't change the update (to float tolerance).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from numpy.typing import NDArray

from lightning_jax.batch import BatchConfig, MicroBatch, Plan, empty_micro_batch, per_transition, plan, shapes
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.gae import explained_variance, rollout_gae, whiten
from lightning_jax.learner.kl_control import KlMemory, next_coefficient
from lightning_jax.learner.objective import Batch, Setting
from lightning_jax.learner.optimizer import OptimizerConfig, optimizer
from lightning_jax.learner.state import TrainState, copied, init_state
from lightning_jax.learner.step import Programs, make_programs
from lightning_jax.model.config import ModelConfig, Precision
from lightning_jax.model.sharding import DEFAULT_RULES, ShardingRules, make_mesh
from lightning_jax.model.transformer import Params
from lightning_jax.types import ScoredTransition

Totals = dict[str, float]  # "sum/name", "max/name" and per-step figures of a whole update


class Learner:
    """Jitted programs and the settings they were made from; the training state is passed in and out.

    `update` and `supervised` use up the optimiser state they are given; `state["params"]` stays valid, so that an
    engine may go on serving it.
    """

    def __init__(
        self,
        model: ModelConfig,
        algo: AlgoConfig,
        batch: BatchConfig,
        optimizer_config: OptimizerConfig,
        mesh: Mesh | None = None,
        *,
        precision: Precision | None = None,
        rules: ShardingRules = DEFAULT_RULES,
    ) -> None:
        self.mesh = make_mesh() if mesh is None else mesh
        self.model, self.algo, self.rules = model, algo, rules
        axes = rules.batch if isinstance(rules.batch, tuple) else (rules.batch,)
        spread = math.prod(self.mesh.shape[a] for a in axes if a is not None)
        self.batch = replace(batch, row_multiple=math.lcm(batch.row_multiple, spread))
        self._tx = optimizer(optimizer_config)
        self._programs = make_programs(Setting(model, algo, precision or Precision(), rules), self._tx)
        self._rows = NamedSharding(self.mesh, rules.spec(("batch", None)))
        self._warm: int | None = None

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Every micro-batch shape (B rows, T tokens, N loss entries) that programs exist for."""
        return shapes(self.batch)

    @property
    def compiled(self) -> int:
        """Executables compiled so far."""
        return self._programs.compiled()

    def init(self, params: Params) -> TrainState:
        """A state that starts from copies of `params` (any device, or numpy)."""
        with jax.set_mesh(self.mesh):
            return init_state(params, self.model, self.algo, self._tx, self.mesh, self.rules)

    def warm_up(self, state: TrainState) -> int:
        """Compile everything that update() can need, leaving `state` as it is; afterwards a recompile is an error.

        Returns the number of executables.
        """
        programs = self._programs
        with jax.set_mesh(self.mesh):
            scalars = self._scalars(state)
            for shape in self.shapes:
                micro = empty_micro_batch(*shape)
                batch = self._device_batch(micro, self._blank_extras(micro))
                if self._evaluates:
                    programs.evaluate(state["params"], self._device_batch(micro, {}))
                if self.algo.reference:
                    programs.evaluate(state["reference"], self._device_batch(micro, {}))
                grads, _ = programs.policy(state["params"], programs.zeros(state["params"]), batch, scalars)
            copy = copied({k: state[k] for k in ("params", "opt_state", "step")})
            jax.block_until_ready(programs.apply(copy["params"], copy["opt_state"], copy["step"], grads))
        self._warm = self.compiled
        return self._warm

    def update(self, state: TrainState, transitions: Sequence[ScoredTransition]) -> tuple[TrainState, dict[str, float]]:
        """Epochs × mini-batches × micro-batches over one batch of transitions.

        Returns the new state and metrics (names in `metrics.py`). Transitions without any gradient leave the state
        as it is, but for the count of updates.
        """
        algo = self.algo
        updates = int(state["updates"])
        work = plan(
            transitions,
            self.batch,
            aggregation=algo.aggregation,
            constant=algo.aggregation_constant,
            mini_batches=algo.mini_batches,
            shuffle_seed=(algo.seed, updates),
            skip_zero_advantage=algo.may_skip,
        )
        metrics = plan_metrics(work, transitions)
        frozen = algo.critic and updates < algo.critic_warmup
        with jax.set_mesh(self.mesh):
            extras = self._extras(state, work, metrics)
            scalars = self._scalars(state, policy_scale=0.0 if frozen else 1.0)
            totals = Totals()
            for _ in range(algo.epochs):
                for mini, extra in extras:
                    batches = [self._device_batch(m, e) for m, e in zip(mini, extra, strict=True)]
                    state = self._step(state, batches, scalars, "policy", totals)
            state = {**state, "updates": state["updates"] + np.int32(1)}
            metrics |= policy_metrics(totals)
            if algo.critic:
                metrics["learner/policy_frozen"] = float(frozen)
            if algo.reference:
                state, metrics = self._control_kl(state, metrics, work.stats.rollouts)
        self._check_compiled(work)
        return state, metrics

    def supervised(
        self, state: TrainState, transitions: Sequence[ScoredTransition]
    ) -> tuple[TrainState, dict[str, float]]:
        """One optimiser step of cross-entropy on the responses; advantages are not looked at."""
        work = plan(transitions, self.batch, aggregation=self.algo.aggregation, constant=self.algo.aggregation_constant)
        totals = Totals()
        with jax.set_mesh(self.mesh):
            scalars = self._scalars(state)
            for mini in work.mini_batches:
                state = self._step(state, [self._device_batch(m, {}) for m in mini], scalars, "supervised", totals)
            state = {**state, "updates": state["updates"] + np.int32(1)}
        metrics = plan_metrics(work, transitions) | supervised_metrics(totals)
        return state, metrics

    def logprobs(self, state: TrainState, transitions: Sequence[ScoredTransition]) -> dict[str, NDArray[np.float32]]:
        """call_id → f32[R]: log-probs of the responses under the state's policy, by the training program."""
        work = plan([replace(s, loss_weight=1.0) for s in transitions], self.batch)
        result: dict[str, NDArray[np.float32]] = {}
        with jax.set_mesh(self.mesh):
            for micro in work.micro_batches:
                out = self._programs.evaluate(state["params"], self._device_batch(micro, {}))
                logp = np.asarray(out["logp"])
                for number in np.unique(micro.entry_transition[micro.entry_transition >= 0]):
                    call_id = work.transitions[number].transition.call_id
                    result[call_id] = logp[micro.entry_transition == number]
        return result

    @property
    def _evaluates(self) -> bool:
        return not self.algo.on_policy or self.algo.critic

    def _step(
        self, state: TrainState, batches: Sequence[Batch], scalars: Batch, kind: str, totals: Totals
    ) -> TrainState:
        """One optimiser step over the micro-batches of a mini-batch."""
        programs: Programs = self._programs
        program = programs.policy if kind == "policy" else programs.supervised
        grads, totals_of_batches = programs.zeros(state["params"]), []
        for batch in batches:
            grads, of_batch = program(state["params"], grads, batch, scalars)
            totals_of_batches.append(of_batch)
        params, opt_state, step, norms = programs.apply(state["params"], state["opt_state"], state["step"], grads)
        add_totals(totals, *jax.device_get((totals_of_batches, norms)))
        return {**state, "params": params, "opt_state": opt_state, "step": step}

    def _extras(
        self, state: TrainState, work: Plan, metrics: dict[str, float]
    ) -> list[tuple[tuple[MicroBatch, ...], list[Batch]]]:
        """Old and reference log-probs and the critic's targets, by one program at the same shapes, before any step."""
        result: list[tuple[tuple[MicroBatch, ...], list[Batch]]] = []
        for mini in work.mini_batches:
            extra: list[Batch] = []
            for micro in mini:
                arrays: Batch = {}
                batch = self._device_batch(micro, {}) if self._evaluates or self.algo.reference else {}
                if self._evaluates:
                    out = self._programs.evaluate(state["params"], batch)
                    if not self.algo.on_policy:
                        arrays["old_logp"] = out["logp"]
                    if self.algo.critic:
                        arrays["old_value"] = out["value"]
                if self.algo.reference:
                    arrays["ref_logp"] = self._programs.evaluate(state["reference"], batch)["logp"]
                extra.append(arrays)
            result.append((mini, extra))
        return self._criticise(work, result, metrics) if self.algo.critic else result

    def _criticise(
        self, work: Plan, minis: list[tuple[tuple[MicroBatch, ...], list[Batch]]], metrics: dict[str, float]
    ) -> list[tuple[tuple[MicroBatch, ...], list[Batch]]]:
        """Turn-level GAE over the old values: replaces the advantages and adds value targets."""
        count = len(work.transitions)
        values, trained = np.zeros(count), np.zeros(count, bool)
        for mini, extra in minis:
            for micro, arrays in zip(mini, extra, strict=True):
                first = micro.entry_first > 0
                values[micro.entry_transition[first]] = np.asarray(arrays["old_value"], np.float64)[first]
                trained[micro.entry_transition[first]] = True
        advantages, targets = rollout_gae(work.transitions, values, self.algo.gamma, self.algo.lam)
        if self.algo.whiten_advantages:
            advantages = whiten(advantages, trained)
        metrics["learner/value_mean"] = float(values[trained].mean()) if trained.any() else 0.0
        metrics["learner/value_target_mean"] = float(targets[trained].mean()) if trained.any() else 0.0
        metrics["learner/explained_variance"] = explained_variance(values[trained], targets[trained])
        result = []
        for mini, extra in minis:
            turns = sum(float(m.entry_first.sum()) for m in mini)
            for micro, arrays in zip(mini, extra, strict=True):
                arrays["entry_advantage"] = self._put(per_transition(micro, advantages))
                arrays["value_target"] = self._put(per_transition(micro, targets))
                arrays["value_weight"] = self._put(micro.entry_first / np.float32(max(turns, 1.0)))
            result.append((mini, extra))
        return result

    def _blank_extras(self, micro: MicroBatch) -> Batch:
        names = [] if self.algo.on_policy else ["old_logp"]
        names += ["ref_logp"] if self.algo.reference else []
        names += ["old_value", "value_target", "value_weight"] if self.algo.critic else []
        return {name: self._put(np.zeros_like(micro.entry_weight)) for name in names}

    def _put(self, x: NDArray[Any]) -> jax.Array:
        placed: jax.Array = jax.device_put(x, self._rows)
        return placed

    def _device_batch(self, micro: MicroBatch, extra: Mapping[str, jax.Array]) -> Batch:
        host = {f.name: getattr(micro, f.name) for f in fields(micro) if f.name not in extra}
        return {**jax.device_put(host, self._rows), **extra}

    def _scalars(self, state: TrainState, policy_scale: float = 1.0) -> Batch:
        coef = float(state["kl"]["coef"]) if self.algo.reference else 0.0
        whole = NamedSharding(self.mesh, jax.sharding.PartitionSpec())
        placed: Batch = jax.device_put({"policy_scale": np.float32(policy_scale), "kl_coef": np.float32(coef)}, whole)
        return placed

    def _control_kl(
        self, state: TrainState, metrics: dict[str, float], rollouts: int
    ) -> tuple[TrainState, dict[str, float]]:
        """Let the controller choose the next update's coefficient."""
        kl = jax.device_get(state["kl"])
        memory = KlMemory(float(kl["coef"]), tuple(float(x) for x in kl["recent"]), int(kl["hold"]))
        after = next_coefficient(memory, metrics.get("learner/kl_nat", 0.0), rollouts, self.algo)
        sharding = state["kl"]["coef"].sharding
        new = {
            "coef": np.float32(after.coef),
            "recent": np.asarray(after.recent, np.float32),
            "hold": np.int32(after.hold),
        }
        metrics = {**metrics, "learner/kl_coef": memory.coef, "learner/kl_guard_fired": float(after.fired)}
        return {**state, "kl": jax.device_put(new, sharding)}, metrics

    def _check_compiled(self, work: Plan) -> None:
        if self._warm is not None and self.compiled > self._warm:
            used = sorted({m.shape for m in work.micro_batches})
            raise RuntimeError(
                f"{self.compiled - self._warm} programs were compiled after warm-up for micro-batches of "
                f"shapes {used}; known are {self.shapes}. A dtype, a sharding or the state's tree must have changed"
            )


def add_totals(totals: Totals, of_batches: Sequence[Mapping[str, Any]], norms: Mapping[str, Any]) -> None:
    """Add one optimiser step's figures to an update's."""
    for out in of_batches:
        for name, value in out["sums"].items():
            totals[f"sum/{name}"] = totals.get(f"sum/{name}", 0.0) + float(value)
        for name, value in out["maxima"].items():
            totals[f"max/{name}"] = max(totals.get(f"max/{name}", -math.inf), float(value))
    norm = float(norms["grad_norm"])
    totals["steps"] = totals.get("steps", 0.0) + 1.0
    totals["skipped"] = totals.get("skipped", 0.0) + float(norms["skipped"])
    totals["grad_norm"] = totals.get("grad_norm", 0.0) + norm
    totals["grad_norm_max"] = max(totals.get("grad_norm_max", 0.0), norm)
    totals["update_norm"] = totals.get("update_norm", 0.0) + float(norms["update_norm"])


def plan_metrics(work: Plan, transitions: Sequence[ScoredTransition]) -> dict[str, float]:
    """What the layout did."""
    stats = work.stats
    zero = sum(s.advantage == 0 for s in transitions)
    return {
        "batch/rollouts_count": float(stats.rollouts),
        "batch/transitions_count": float(stats.transitions),
        "batch/skipped_transitions_count": float(stats.skipped),
        "batch/dropped_transitions_count": float(stats.dropped),
        "batch/empty_transitions_count": float(stats.empty),
        "batch/zero_advantage_fraction": zero / max(1, len(transitions)),
        "batch/trained_tokens": float(stats.tokens_trained),
        "batch/computed_tokens": float(stats.tokens_computed),
        "batch/sharing_factor": stats.tokens_separate / max(1, stats.tokens_laid),
        "batch/fill_fraction": stats.tokens_laid / max(1, stats.tokens_computed),
        "batch/micro_batches_count": float(stats.micro_batches),
    }


def step_metrics(totals: Totals) -> dict[str, float]:
    """What every kind of update reports; zeros where there was nothing to train on."""
    steps, tokens = max(1.0, totals.get("steps", 0.0)), max(1.0, totals.get("sum/tokens", 0.0))
    return {
        "learner/loss": totals.get("sum/loss", 0.0) / steps,
        "learner/entropy_nat": totals.get("sum/entropy", 0.0) / tokens,
        "learner/grad_norm": totals.get("grad_norm", 0.0) / steps,
        "learner/grad_norm_max": totals.get("grad_norm_max", 0.0),
        "learner/update_norm": totals.get("update_norm", 0.0) / steps,
        "learner/steps_count": totals.get("steps", 0.0),
        "learner/skipped_steps_count": totals.get("skipped", 0.0),
    }


def supervised_metrics(totals: Totals) -> dict[str, float]:
    """Metrics of supervised()."""
    tokens = max(1.0, totals.get("sum/tokens", 0.0))
    return step_metrics(totals) | {"learner/logp_nat": totals.get("sum/logp", 0.0) / tokens}


def policy_metrics(totals: Totals) -> dict[str, float]:
    """Metrics of update(): means are per trained token, over all epochs."""
    steps, tokens = max(1.0, totals.get("steps", 0.0)), max(1.0, totals.get("sum/tokens", 0.0))

    def mean(name: str) -> float:
        return totals.get(f"sum/{name}", 0.0) / tokens

    square = totals.get("sum/rho_squared", 0.0)
    metrics = step_metrics(totals) | {
        "learner/policy_loss": totals.get("sum/policy_loss", 0.0) / steps,
        "learner/clip_fraction": mean("clipped"),
        "learner/dual_clip_fraction": mean("dual_clipped"),
        "learner/ratio_mean": mean("ratio"),
        "learner/ratio_max": totals.get("max/ratio", 0.0),
        "learner/old_kl_nat": mean("old_kl"),
        "learner/gap_nat": mean("gap"),
        "learner/gap_max_nat": totals.get("max/gap", 0.0),
        "learner/rho_mean": mean("rho"),
        "learner/rho_max": totals.get("max/rho", 0.0),
        "learner/rho_ess_fraction": totals["sum/rho"] ** 2 / (tokens * square) if square else 0.0,
        "learner/tis_truncated_fraction": mean("tis_truncated"),
    }
    if "sum/kl" in totals:
        metrics |= {"learner/kl_nat": mean("kl"), "learner/kl_max_nat": totals["max/kl"]}
    if "sum/value_loss" in totals:
        metrics["learner/value_loss"] = totals["sum/value_loss"] / steps
    return metrics
