"""Look at traces, and move them: what an agent did, what was put aside and why, tables for notebooks, OTLP files.

    python -m lightning_jax.traces show ROLLOUT --store RUN_FOLDER
    python -m lightning_jax.traces quarantine --store sqlite:///traces.sqlite
    python -m lightning_jax.traces export FOLDER --store RUN_FOLDER
    python -m lightning_jax.traces import FILE... --target HOST:PORT [--attempt ROLLOUT/ATTEMPT]

`--store` is a run's folder (credit and advantages are then shown too) or the store's SQLAlchemy URL. All but `import`
only read, also while a server writes. Agents are called as training called them where the folder's config.yaml leads to
the study; `--patterns` names them otherwise.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from lightning_jax.ingest.reader import StoreReader
from lightning_jax.traces.names import names_of
from lightning_jax.traces.otlp_files import read_otlp, send
from lightning_jax.traces.quarantine import quarantine
from lightning_jax.traces.tables import export
from lightning_jax.traces.tree import scores_of, short, show


def _url(store: str) -> str:
    return store if "://" in store else f"sqlite:///{Path(store) / 'store.sqlite'}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lightning_jax.traces", description=str(__doc__).partition("\n")[0],
        epilog="For import the key is taken from LJX_API_KEY.",
    )  # fmt: skip
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("show", help="print a rollout as a tree")
    one.add_argument("rollout")
    aside = commands.add_parser("quarantine", help="list what was put aside, with reasons")
    aside.add_argument("--limit", type=int, default=200, help="rows printed, default %(default)s")
    out = commands.add_parser("export", help="write transitions.parquet and spans.parquet")
    out.add_argument("folder", type=Path)
    for command in (one, aside, out):
        command.add_argument("--store", required=True, help="a run's folder, or the store's SQLAlchemy URL")
        command.add_argument(
            "--patterns",
            type=Path,
            help="YAML, agent name -> regex on its system prompt (default: as the run's study has)",
        )
    into = commands.add_parser("import", help="send OTLP JSON files to a server")
    into.add_argument("files", type=Path, nargs="+")
    into.add_argument("--target", required=True, help="host:port of ingestion (gRPC); https://host:port for TLS")
    into.add_argument("--attempt", default="", metavar="ROLLOUT/ATTEMPT", help="whose spans they are")
    return parser


def main(argv: Sequence[str] | None = None, console: Console | None = None) -> int:
    """The command line."""
    options = _parser().parse_args(argv)
    console = console or Console(highlight=False)
    try:
        if options.command == "import":
            if options.attempt and options.attempt.count("/") != 1:
                raise ValueError(f"--attempt is {options.attempt!r}; write ROLLOUT/ATTEMPT")
            requests = (request for file in options.files for request in read_otlp(file))
            sent, rejected = send(options.target, requests, options.attempt, os.environ.get("LJX_API_KEY"))
            console.print(f"{sent} spans sent, {rejected} rejected")
            return 0
        naming = names_of(options.patterns, options.store, console)
        with StoreReader(_url(options.store)) as reader:
            if options.command == "show":
                scores = {} if "://" in options.store else scores_of(Path(options.store), options.rollout)
                show(reader, options.rollout, scores, console, naming)
            elif options.command == "quarantine":
                quarantine(reader, console, options.limit, naming)
            else:
                counts = export(reader, options.folder, naming)
                console.print(", ".join(f"{count} {name}" for name, count in counts.items()))
    except (ValueError, OSError) as error:
        console.print(f"[red]{short(str(error), 500)}[/]")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
