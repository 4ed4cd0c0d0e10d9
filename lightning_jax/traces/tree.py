"""One rollout as a tree: calls, agents, tools, times, tokens, rewards, and what training made of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.tree import Tree

from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.assemble.trajectory import assemble
from lightning_jax.ingest.reader import StoreReader
from lightning_jax.types import Transition

NO_NAMES = AgentNaming()  # agents are called as spans call them, or by a hash of their prompt


def show(
    reader: StoreReader,
    rollout_id: str,
    scores: Mapping[str, Mapping[str, Any]],
    console: Console,
    naming: AgentNaming = NO_NAMES,
) -> None:
    """Print one rollout as a tree. scores: see `scores_of`. ValueError for a rollout that the store does not know."""
    sealed = reader.rollout(rollout_id)
    if sealed is None:
        raise ValueError(f"the store knows no rollout {rollout_id!r}")
    late = reader.late_spans(sealed.attempt_id, len(sealed.spans)) if sealed.cursor else ()
    assembled = assemble(sealed, naming, late)
    trajectory, rollout = assembled.trajectory, sealed.rollout
    outcome = f"{sealed.outcome.status}{': ' + sealed.outcome.reason if sealed.outcome.reason else ''}"
    tree = Tree(
        f"[bold]{rollout.rollout_id}[/] task {rollout.task_id} sample {rollout.sample} {rollout.mode} "
        f"step {rollout.step} attempt {sealed.attempt_id or '-'} · {outcome}"
    )
    if trajectory.reported:
        tree.add("reported " + " ".join(f"{name}={value:g}" for name, value in trajectory.reported.items()))
    start = min((call.started_ns for call in sealed.calls), default=0)
    branches: dict[tuple[str, ...], Tree] = {(): tree}
    for transition in trajectory.transitions:
        branch = _branch(branches, (*transition.parents[::-1], transition.agent))
        node = branch.add(_line(transition, start, scores.get(transition.call_id, {})))
        for tool in transition.tools:
            style = "green" if tool.verdict == "ok" else "red"
            code = f" HTTP {tool.status_code}" if tool.status_code else ""
            took = f" {tool.latency_s:.3f} s" if tool.latency_s is not None else ""
            node.add(f"tool {tool.name or '?'} [{style}]{tool.verdict}[/]{code}{took} {short(tool.arguments)}")
    spans = f"{len(assembled.reading.spans)} spans, {len(assembled.reading.calls)} of them of calls"
    tree.add(spans + (f"; {len(late)} came after the seal" if late else ""))
    for (kind, reason), count in sorted(assembled.reasons().items()):
        tree.add(f"[yellow]put aside: {count} {kind} {reason}[/]")
    console.print(tree)


def _branch(branches: dict[tuple[str, ...], Tree], path: tuple[str, ...]) -> Tree:
    """The tree node of a line of agents; made where it is new."""
    for length in range(1, len(path) + 1):
        if path[:length] not in branches:
            branches[path[:length]] = branches[path[: length - 1]].add(f"agent [cyan]{path[length - 1]}[/]")
    return branches[path]


def _line(transition: Transition, start_ns: int, score: Mapping[str, Any]) -> str:
    took = (transition.ended_ns - transition.started_ns) / 1e9
    words = [
        f"#{transition.index} {transition.call_id}",
        f"at {(transition.started_ns - start_ns) / 1e9:.3f} s for {took:.3f} s",
        f"{len(transition.prompt_ids)}+{len(transition.response_ids)} tokens",
        f"v{transition.policy_version} {transition.finish_reason}",
    ]
    if transition.kept_mass < 1.0:
        words.append(f"kept mass {transition.kept_mass:.3g}" if transition.kept_mass else "constrained")
    if transition.node:
        words.append(f"node {transition.node}")
    if transition.reward or transition.components:
        words.append(f"reward {transition.reward:g}")
    words += [f"{name} {score[name]:.4g}" for name in ("credit", "advantage") if score.get(name) is not None]
    return " · ".join(words) + f"\n{short(transition.text, 100)}"


def short(text: str, length: int = 60) -> str:
    """One line of at most ``length`` characters, safe to print with rich."""
    plain = " ".join(text.split()).replace("[", "\\[")
    return plain if len(plain) <= length else plain[: length - 1] + "…"


def scores_of(folder: Path, rollout_id: str) -> dict[str, dict[str, Any]]:
    """call id → credit and advantage of a rollout's transitions, from the tables of a run's folder; {} where none."""
    if not (folder / "transitions").is_dir():
        return {}
    columns = ["call_id", "credit", "advantage"]
    table = pq.read_table(folder / "transitions", columns=columns, filters=[("rollout_id", "=", rollout_id)])
    return {row["call_id"]: row for row in table.to_pylist()}
