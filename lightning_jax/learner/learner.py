"""The learner: transitions in, a new train state and metrics out.

Invariants: the same state and transitions give the same bits, in whatever order the transitions come; micro-batch size,
padding, packing and sharding don't change the update (to float tolerance).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from lightning_jax.batch import BatchConfig, Plan, empty_micro_batch, plan, shapes
from lightning_jax.learner.config import AlgoConfig
from lightning_jax.learner.kl_control import WINDOW, KlMemory, next_coefficient
from lightning_jax.learner.objective import Batch, Setting
from lightning_jax.learner.optimizer import OptimizerConfig, optimizer
from lightning_jax.learner.placement import fetch, put
from lightning_jax.learner.preparation import Preparer
from lightning_jax.learner.state import TrainState, init_state, model_of, reference_of
from lightning_jax.learner.step import Programs, make_programs, not_finite
from lightning_jax.learner.totals import Totals, add_totals, plan_metrics, policy_metrics, supervised_metrics
from lightning_jax.learner.trainable import CRITIC, join, split
from lightning_jax.model.config import ModelConfig, Precision
from lightning_jax.model.sharding import DEFAULT_RULES, ShardingRules, make_mesh
from lightning_jax.model.transformer import Params
from lightning_jax.types import ScoredTransition


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
        self._tx, self._offload = optimizer(optimizer_config), optimizer_config.offload
        setting = Setting(model, algo, precision or Precision(), rules)
        self._programs = make_programs(setting, self._tx, offload=self._offload)
        self._prepare = Preparer(self._programs, algo, NamedSharding(self.mesh, rules.spec(("batch", None))))
        self._warm: int | None = None
        _ = algo.constant  # missing, it is missed now and not at the first update

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """Every micro-batch shape (B rows, T tokens, N loss entries) that programs exist for."""
        return shapes(self.batch)

    @property
    def compiled(self) -> int:
        """Executables compiled so far."""
        return self._programs.compiled()

    def init(self, params: Params) -> TrainState:
        """A state that starts from `params` (any device, or numpy); leaves that lie right are shared, not copied."""
        with jax.set_mesh(self.mesh):
            return init_state(params, self.model, self.algo, self._tx, self.mesh, self.rules, offload=self._offload)

    def warm_up(self, state: TrainState) -> int:
        """Compile everything that update() can need; afterwards a recompile is an error.

        `state` keeps its values. Its optimiser state moves to new buffers: a copy would make this the step that needs
        the most memory of all. Returns the number of executables.
        """
        programs = self._programs
        with jax.set_mesh(self.mesh):
            scalars = self._scalars(state)
            trained, held = split(state["params"], self.algo)
            for shape in self.shapes:
                micro = empty_micro_batch(*shape)
                if self.algo.evaluates:
                    programs.evaluate(state["params"], self._prepare.batch(micro))
                if self.algo.reference:
                    programs.evaluate(reference_of(state), self._prepare.batch(micro))
                grads, _ = programs.policy(trained, held, programs.zeros(trained), self._prepare.blank(micro), scalars)
                jax.block_until_ready(grads)
                del grads
            # a gradient that is not finite changes nothing
            _, state["opt_state"], _, _ = programs.apply(
                trained, state["opt_state"], state["step"], not_finite(programs.zeros(trained))
            )
            jax.block_until_ready(state["opt_state"])
            self.served(state)
        self._warm = self.compiled
        return self._warm

    def update(self, state: TrainState, transitions: Sequence[ScoredTransition]) -> tuple[TrainState, dict[str, float]]:
        """Epochs × mini-batches × micro-batches over one batch of transitions.

        Returns the new state and metrics (names in `metrics.py`). Transitions without any gradient leave the state
        as it is, but for the count of updates.
        """
        algo = self.algo
        updates = int(state["updates"])
        cut = [algo.mask_truncated and s.transition.finish_reason == "length" for s in transitions]
        work = plan(
            [replace(s, loss_weight=0.0) if c else s for s, c in zip(transitions, cut, strict=True)],
            self.batch,
            aggregation=algo.aggregation,
            constant=algo.constant,
            mini_batches=algo.mini_batches,
            shuffle_seed=(algo.seed, updates),
            skip_zero_advantage=algo.may_skip,
        )
        frozen = algo.has_critic and updates < algo.critic_warmup
        with jax.set_mesh(self.mesh):
            prepared = self._prepare.prepare(state, work, self._kl_coef(state))
            metrics = plan_metrics(work, transitions) | prepared.metrics
            scalars = self._scalars(state, policy_scale=0.0 if frozen else 1.0)
            totals = Totals()
            for _ in range(algo.epochs):
                for batches in prepared.mini_batches:
                    state = self._step(state, batches, scalars, "policy", totals, critic_only=frozen)
            state = {**state, "updates": state["updates"] + np.int32(1)}
            metrics |= policy_metrics(totals)
            if algo.mask_truncated:
                metrics["batch/truncated_transitions_count"] = float(sum(cut))
            if algo.has_critic:
                metrics["learner/policy_frozen"] = float(frozen)
            if algo.reference:
                measured = totals.get("sum/tokens", 0.0) > 0
                kl = metrics["learner/kl_nat"] if measured else math.nan
                state, memory, after = self._control_kl(state, kl, work.stats.rollouts)
                metrics |= {"learner/kl_coef": memory.coef, "learner/kl_guard_fired": float(after.fired)}
        self._check_compiled(work)
        return state, metrics

    def supervised(
        self, state: TrainState, transitions: Sequence[ScoredTransition]
    ) -> tuple[TrainState, dict[str, float]]:
        """One optimiser step of cross-entropy on the responses; advantages are not looked at."""
        work = plan(transitions, self.batch, aggregation=self.algo.aggregation, constant=self.algo.constant)
        totals = Totals()
        with jax.set_mesh(self.mesh):
            scalars = self._scalars(state)
            for mini in work.mini_batches:
                state = self._step(state, [self._prepare.batch(m) for m in mini], scalars, "supervised", totals)
            state = {**state, "updates": state["updates"] + np.int32(1)}
        metrics = plan_metrics(work, transitions) | supervised_metrics(totals)
        return state, metrics

    def logprobs(self, state: TrainState, transitions: Sequence[ScoredTransition]) -> dict[str, NDArray[np.float32]]:
        """call_id → f32[R]: log-probs of the responses under the state's policy, by the training program."""
        work = plan([replace(s, loss_weight=1.0) for s in transitions], self.batch)
        result: dict[str, NDArray[np.float32]] = {}
        with jax.set_mesh(self.mesh):
            for micro in work.micro_batches:
                logp = fetch(self._programs.evaluate(state["params"], self._prepare.batch(micro))["logp"])
                for number in np.unique(micro.entry_transition[micro.entry_transition >= 0]):
                    call_id = work.transitions[number].transition.call_id
                    result[call_id] = logp[micro.entry_transition == number]
        return result

    def served(self, state: TrainState) -> Params:
        """The policy that calls are answered by: the model alone, adapters folded in. No copy where there are none."""
        if self.algo.lora is None:
            return model_of(state["params"])
        with jax.set_mesh(self.mesh):
            policy: Params = self._programs.merge(state["params"])
        return policy

    def _step(
        self,
        state: TrainState,
        batches: Sequence[Batch],
        scalars: Batch,
        kind: str,
        totals: Totals,
        *,
        critic_only: bool = False,
    ) -> TrainState:
        """One optimiser step over the micro-batches of a mini-batch. critic_only: nothing else moves."""
        programs: Programs = self._programs
        program = programs.policy if kind == "policy" else programs.supervised
        trained, held = split(state["params"], self.algo)
        grads, totals_of_batches = programs.zeros(trained), []
        for batch in batches:
            grads, of_batch = program(trained, held, grads, batch, scalars)
            totals_of_batches.append(of_batch)
        moved, opt_state, step, norms = programs.apply(trained, state["opt_state"], state["step"], grads)
        if critic_only:  # without a gradient the policy would still feel the weight decay
            moved = {**trained, **{name: moved[name] for name in CRITIC if name in moved}}
        add_totals(totals, *jax.device_get((totals_of_batches, norms)))
        return {**state, "params": join(moved, held), "opt_state": opt_state, "step": step}

    def _kl_coef(self, state: TrainState) -> float:
        return float(state["kl"]["coef"]) if self.algo.reference else 0.0

    def _scalars(self, state: TrainState, policy_scale: float = 1.0) -> Batch:
        whole = NamedSharding(self.mesh, PartitionSpec())
        values = {"policy_scale": policy_scale, "kl_coef": self._kl_coef(state)}
        return {name: put(np.float32(value), whole) for name, value in values.items()}

    def _control_kl(self, state: TrainState, kl: float, rollouts: int) -> tuple[TrainState, KlMemory, KlMemory]:
        """Let the controller choose the next coefficient; its memory before and after. kl NaN: none was measured."""
        saved = jax.device_get(state["kl"])
        recent = tuple(float(x) for x in saved["recent"] if not math.isnan(x))
        memory = KlMemory(float(saved["coef"]), recent, int(saved["hold"]))
        after = next_coefficient(memory, kl, rollouts, self.algo)
        sharding = state["kl"]["coef"].sharding
        new = {
            "coef": np.float32(after.coef),
            "recent": np.array([math.nan] * (WINDOW - len(after.recent)) + [*after.recent], np.float32),
            "hold": np.int32(after.hold),
        }
        return {**state, "kl": {name: put(value, sharding) for name, value in new.items()}}, memory, after

    def _check_compiled(self, work: Plan) -> None:
        if self._warm is not None and self.compiled > self._warm:
            used = sorted({m.shape for m in work.micro_batches})
            raise RuntimeError(
                f"{self.compiled - self._warm} programs were compiled after warm-up for micro-batches of "
                f"shapes {used}; known are {self.shapes}. A dtype, a sharding or the state's tree must have changed"
            )
