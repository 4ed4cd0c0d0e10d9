"""A sweep by one command, and the notebook over what it leaves behind."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from experiments import analysis, artefacts
from tests.e2e.toy import ROOT, command


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 credit strategies × 2 seeds, one optimiser step each."""
    folder = tmp_path_factory.mktemp("sweep")
    words = command(folder, f"hydra.sweep.dir={folder}", "credit=uniform,exponential", "seed=0,1")
    words.insert(words.index("experiments.run") + 1, "-m")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["0", "1", "2", "3"]
    return folder


def test_arms_and_seeds_are_told_apart(sweep: Path) -> None:
    runs = artefacts.load_runs(sweep)
    assert [run.status for run in runs] == ["finished"] * 4
    groups = artefacts.arms(runs)
    assert {arm: [run.seed for run in group] for arm, group in groups.items()} == {
        "uniform": [0, 1],
        "exponential": [0, 1],
    }
    hashes = {arm: {run.summary["config_hash"] for run in group} for arm, group in groups.items()}
    assert len(hashes["uniform"] | hashes["exponential"]) == 2
    assert hashes["uniform"].isdisjoint(hashes["exponential"])
    table = analysis.results(runs)
    assert isinstance(table, pd.DataFrame)
    assert table["seeds"].tolist() == [2, 2]
    assert table["items"].tolist() == ["14", "14"]


def test_the_notebook_reads_it(sweep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(artefacts.RUNS_VARIABLE, str(sweep))
    notebook = nbformat.read(ROOT / "notebooks" / "analysis.ipynb", as_version=4)
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(ROOT / "notebooks")}}).execute()
    shown = json.dumps(notebook)
    assert "exponential" in shown
    assert "image/png" in shown
