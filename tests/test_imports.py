"""Data flows one way, and so do imports: read from the source, so that no import can hide in a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "lightning_jax"
STAGES = ("ingest", "assemble", "rewards", "credit", "batch", "learner", "publish", "serve")
# Known to all, knowing no stage.
LEAVES = {"types", "configuration", "cache", "garbage", "loopback", "written_calls", "tool_verdicts", "_proto"}
USES_MODEL = {"batch", "learner", "serve", "publish"}
TOP = {"run", "client", "server", "runner", "presets", "plan", "export", "traces"}
FRAMEWORKS = {"hydra", "omegaconf"}
HEAVY = {"jax", "flax", "optax"}  # device code
HOST_STAGES = ("ingest", "assemble", "rewards", "credit")


def imported(path: Path) -> Iterator[str]:
    """Dotted names of everything a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def part_of(name: str) -> str | None:
    """The part of the package that a dotted name lies in; None for other packages."""
    root, _, rest = name.partition(".")
    return rest.partition(".")[0] if root == "lightning_jax" else None


def files(part: str) -> list[Path]:
    return sorted((PACKAGE / part).rglob("*.py")) if (PACKAGE / part).is_dir() else [PACKAGE / f"{part}.py"]


def allowed(stage: str) -> set[str]:
    place = STAGES.index(stage)
    return {stage, *LEAVES, *STAGES[max(0, place - 1) : place], *({"model"} if stage in USES_MODEL else set())}


@pytest.mark.parametrize("stage", STAGES)
def test_a_stage_knows_its_left_neighbour_at_most(stage: str) -> None:
    backward = {
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files(stage)
        for name in imported(path)
        if part_of(name) not in {None, *allowed(stage)}
    }
    assert not backward


@pytest.mark.parametrize("leaf", ["types", "configuration", "cache", "model"])
def test_leaves_know_no_stage(leaf: str) -> None:
    known = {part_of(name) for path in files(leaf) for name in imported(path)} - {None, leaf}
    assert known <= {"types", "configuration", "cache"}


def test_every_part_has_its_place() -> None:
    parts = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert parts - {"__init__"} == {*STAGES, *LEAVES, *TOP, "model"}


@pytest.mark.parametrize("stage", HOST_STAGES)
def test_host_stages_have_no_device_code(stage: str) -> None:
    assert not {name for path in files(stage) for name in imported(path)} & HEAVY


def test_only_experiments_know_hydra() -> None:
    users = {path for path in PACKAGE.rglob("*.py") for name in imported(path) if name.partition(".")[0] in FRAMEWORKS}
    assert not users


def test_agents_know_nothing_of_the_package() -> None:
    found = sorted((ROOT / "experiments").glob("*/agent.py"))
    assert len(found) >= 2
    for path in found:
        foreign = {name for name in imported(path) if name.partition(".")[0] == "lightning_jax"}
        assert not foreign, f"{path.relative_to(ROOT)}: an agent must run without this package"
