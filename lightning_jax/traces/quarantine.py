"""What was put aside, on its way in and when trajectories were built, with reasons."""

from __future__ import annotations

from collections import Counter

from rich.console import Console
from rich.table import Table

from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.assemble.trajectory import assemble
from lightning_jax.ingest.reader import StoreReader
from lightning_jax.traces.tree import NO_NAMES, short


def quarantine(reader: StoreReader, console: Console, limit: int, naming: AgentNaming = NO_NAMES) -> int:
    """List what was put aside: on its way in, and when trajectories were built. Returns how much that was."""
    found = [(item.kind, item.reason, item.identity, item.detail) for item in reader.quarantine()]
    for sealed in reader.sealed():
        place = f"rollout {sealed.rollout.rollout_id} attempt {sealed.attempt_id}"
        found += [(item.kind, item.reason, item.identity, place) for item in assemble(sealed, naming).quarantined]
    table = Table("kind", "reason", "identity", "detail")
    for row in found[:limit]:
        table.add_row(*(short(text, 100) for text in row))
    console.print(table)
    for (kind, reason), count in sorted(Counter((kind, reason) for kind, reason, *_ in found).items()):
        console.print(f"{count} {kind} {reason}")
    return len(found)
