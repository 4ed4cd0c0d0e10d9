"""Transitions made of random tokens that share prefixes as an agent's calls do."""

from __future__ import annotations

import numpy as np

from lightning_jax.types import ScoredTransition, Transition

VOCAB = 96  # even, so that tensor parallelism can split it


def transition(
    prompt: list[int] | np.ndarray,
    response: list[int] | np.ndarray,
    *,
    task: str = "t",
    rollout: str = "r",
    index: int = 0,
    advantage: float = 1.0,
    loss_weight: float = 1.0,
    credit: float = 1.0,
    rollout_logp: float = -4.0,
    temperature: float = 1.0,
) -> ScoredTransition:
    return ScoredTransition(
        Transition(
            call_id=f"{rollout}/{index}",
            index=index,
            agent="a",
            prompt_ids=np.asarray(prompt, np.int32),
            response_ids=np.asarray(response, np.int32),
            rollout_logps=np.full(len(response), rollout_logp, np.float32),
            temperature=temperature,
            policy_version=0,
            finish_reason="stop",
        ),
        task_id=task,
        rollout_id=rollout,
        advantage=advantage,
        credit=credit,
        loss_weight=loss_weight,
    )


def agent_calls(seed: int, *, tasks: int = 3, samples: int = 3, calls: int = 3) -> list[ScoredTransition]:
    """Samples share the task's prompt; each further call extends what the rollout said before, or starts afresh."""
    rng = np.random.default_rng(seed)
    system = rng.integers(1, VOCAB, 4)
    result = []
    for task in range(tasks):
        question = np.concatenate([system, rng.integers(1, VOCAB, 5)])
        for sample in range(samples):
            prompt = question
            for index in range(int(rng.integers(1, calls + 1))):
                response = rng.integers(1, VOCAB, int(rng.integers(1, 6)))
                result.append(
                    transition(
                        prompt,
                        response,
                        task=f"t{task}",
                        rollout=f"t{task}-{sample}",
                        index=index,
                        advantage=float(rng.normal()),
                        credit=float(rng.normal()),
                        rollout_logp=-float(rng.uniform(3.5, 5.5)),
                        temperature=float(rng.choice([0.7, 1.0])),
                    )
                )
                observed = rng.integers(1, VOCAB, 3)
                prompt = np.concatenate([prompt, response, observed] if rng.random() < 0.8 else [system, observed])
    return result
