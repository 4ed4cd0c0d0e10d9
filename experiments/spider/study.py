"""The Spider study for the loop: a layout on disk → tasks, judge, demonstrations.

`root: null` makes the embedded data; any folder in Spider's own layout is taken unchanged.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from experiments.spider.agent import prompt
from experiments.spider.contents import column_values
from experiments.spider.demonstrations import Mix, demonstrations
from experiments.spider.generate import generate
from experiments.spider.layout import Layout
from experiments.spider.layout import load as load_layout
from experiments.spider.reward_terms import terms
from experiments.spider.tasks import Parts, part, tasks
from lightning_jax.cache import cache_root
from lightning_jax.configuration import from_mapping
from lightning_jax.run.study import Study

log = logging.getLogger(__name__)

ROLES = ("write", "check", "rewrite")


@dataclass(frozen=True)
class SpiderConfig:
    """conf/task/spider.yaml."""

    study: str
    root: str | None = None  # folder in Spider's layout; None: the embedded data
    split: str = "shared"  # of the embedded data: shared | cross_db
    seed: int = 0  # of the embedded data and of the parting into demonstrations, train and validation
    demonstrations: int = 300  # questions whose answers the warm-up is shown
    variations: int = 0  # of each demonstration, names and values exchanged; for models that start from nothing
    mix: Mapping[str, float] = field(default_factory=dict)  # demonstrations of each role per question
    validation: int = 200
    train_limit: int | None = None
    eval_limit: int | None = None
    max_calls: int = 5  # where the efficiency term reaches 0
    keep_distinct: bool = False
    prompts: str = "short"  # the agent's; demonstrations use the same


def load(config: Mapping[str, Any]) -> Study:
    """Build the study from the task group of a run's configuration. ValueError names what does not fit."""
    settings = from_mapping(SpiderConfig, config, where="task")
    layout = _layout(settings)
    parts = part(
        layout,
        demonstrations=settings.demonstrations,
        validation=settings.validation,
        seed=settings.seed,
        eval_limit=settings.eval_limit,
    )
    shown = demonstrations(
        parts.demonstrations,
        layout,
        prompts=settings.prompts,
        mix=from_mapping(Mix, settings.mix, where="task.mix"),
        seed=settings.seed,
        variations=settings.variations,
        texts=(*parts.demonstrations, *parts.train),
    )
    train = tasks(parts.train, layout)[: settings.train_limit]
    return Study(
        name="spider",
        metric="execution_accuracy",
        breakdown="hardness",
        train=train,
        validation=tasks(parts.validation, layout),
        test=tasks(parts.test, layout),
        terms=terms(max_calls=settings.max_calls, keep_distinct=settings.keep_distinct),
        agents={role: _begins_with(prompt(settings.prompts, f"{role}.system")) for role in ROLES},
        demonstrations=shown,
        corpus=_corpus(parts, layout, shown),
    )


def _layout(settings: SpiderConfig) -> Layout:
    if settings.root is not None:
        return load_layout(settings.root)
    if settings.split not in ("shared", "cross_db"):
        raise ValueError(f"task.split={settings.split!r} is not one of ('shared', 'cross_db')")
    return load_layout(generate(settings.seed, cache_root() / "data", settings.split))  # type: ignore[arg-type]


def _corpus(parts: Parts, layout: Layout, shown: Any) -> list[str]:
    """Texts a tokenizer may see: questions, schemas and rows of train, the demonstrations; no answer beyond those."""
    texts = [question.question for question in (*parts.demonstrations, *parts.train)]
    texts += [task.input["schema"] for task in tasks(parts.train, layout)]
    for demonstration in shown:
        texts += [str(m["content"]) for m in demonstration.messages]
        texts.append(demonstration.answer)
    for name in sorted({question.db_id for question in (*parts.demonstrations, *parts.train)}):
        for values in column_values(layout.databases(name)[0], layout.schemas[name]).values():
            texts += [f"'{value}'" if isinstance(value, str) else f" {value}" for value in values]
    return texts


def _begins_with(text: str) -> str:
    """Pattern for system prompts that begin as this one does."""
    return "^" + re.escape(text.strip().splitlines()[0])
