"""Tables and figures on a synthetic sweep, whole and in every broken state; the notebook as a reader runs it."""

from __future__ import annotations

import io
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import nbformat
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from nbclient import NotebookClient

from experiments import analysis, artefacts, figures
from experiments.analysis import Note
from experiments.artefacts import Run
from tests.analysis.synthetic import write_run, write_sweep

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "analysis.ipynb"
TABLES = (
    analysis.results,
    analysis.by_hardness,
    analysis.failures,
    analysis.comparisons,
    analysis.reward_components,
    analysis.stage_seconds,
)
ARTEFACTS = (
    "summary.json",
    "metrics.jsonl",
    "timings.jsonl",
    "evaluations",
    "transitions",
    "config.yaml",
)
FIGURES = (figures.learning_curves, figures.credit_heat_map, figures.reward_against_metric, figures.diagnostics)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep"))


@pytest.fixture
def own_sweep(sweep: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sweep, tmp_path / "sweep"))


def test_runs_are_found_and_grouped_by_what_differs(sweep: Path) -> None:
    runs = artefacts.load_runs(sweep)
    assert [run.path.name for run in runs] == ["0", "1", "2", "3", "4", "5"]
    groups = artefacts.arms(runs)
    assert {arm: [run.seed for run in group] for arm, group in groups.items()} == {
        "uniform": [0, 1, 2],
        "exponential": [0, 1, 2],
    }
    assert [run.path.name for run in artefacts.load_runs(sweep / "3")] == ["3"]


def test_a_sweep_over_one_setting_names_the_setting(own_sweep: Path) -> None:
    for job, gamma in (("4", 0.5), ("5", 0.5)):
        path = own_sweep / job / "config.yaml"
        path.write_text(path.read_text().replace("gamma: 0.85", f"gamma: {gamma}"))
    found = artefacts.arms(artefacts.load_runs(own_sweep))
    assert set(found) == {
        "uniform · credit.gamma=None",
        "exponential · credit.gamma=0.85",
        "exponential · credit.gamma=0.5",
    }


def test_results_are_the_means_over_seeds(sweep: Path) -> None:
    runs = artefacts.load_runs(sweep)
    table = analysis.results(runs)
    assert isinstance(table, pd.DataFrame)
    for arm in ("uniform", "exponential"):
        after = [r.summary["eval_after"]["execution_accuracy"] for r in runs if r.arm == arm]
        half = 4.302653 * np.std(after, ddof=1) / math.sqrt(3)  # t quantile of two degrees of freedom
        assert table.loc[arm, "after, %"] == f"{100 * np.mean(after):.1f} ± {100 * half:.1f}"
        assert (table.loc[arm, "seeds"], table.loc[arm, "items"], table.loc[arm, "not finished"]) == (3, "60", 0)


def test_the_better_arm_is_found_and_p_is_corrected(sweep: Path) -> None:
    table = analysis.comparisons(artefacts.load_runs(sweep), resamples=500)
    assert isinstance(table, pd.DataFrame)
    row = table.loc[("uniform", "exponential")]
    assert row["A - B, points"].startswith("-")
    assert row["p"] <= row["p (Holm)"] < 0.05
    assert (row["common seeds"], row["common items"]) == (3, 60)
    assert float(row["P(A better)"].split()[0]) < 0.2


def test_failures_are_listed_not_dropped(own_sweep: Path) -> None:
    summary = json.loads((own_sweep / "0" / "summary.json").read_text())
    del summary["eval_after"]
    (own_sweep / "0" / "summary.json").write_text(
        json.dumps({**summary, "status": "failed", "failure": "out of memory"})
    )
    (own_sweep / "1" / "summary.json").unlink()
    with (own_sweep / "2" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 11, "learner/grad_norm": NaN}\n{"step": 12, "learner/gr')  # diverged, then cut off
    runs = artefacts.load_runs(own_sweep)
    table = analysis.failures(runs)
    assert isinstance(table, pd.DataFrame)
    assert table["status"].to_dict() == {"0": "failed", "1": "unfinished", "2": "diverged"}
    assert table.loc["0", "why"] == "out of memory"
    assert "learner/grad_norm not finite at step 11" in table.loc["2", "why"]
    results = analysis.results(runs)
    assert isinstance(results, pd.DataFrame)
    assert results.loc["uniform", "seeds"] == 1
    assert results.loc["uniform", "not finished"] == 2
    assert "±" not in results.loc["uniform", "after, %"]  # one seed has no interval over seeds
    comparison = analysis.comparisons(runs, resamples=100)
    assert isinstance(comparison, pd.DataFrame)
    assert comparison["common seeds"].tolist() == [1]


def test_components_that_pay_for_nothing_show(sweep: Path) -> None:
    table = analysis.reward_components(artefacts.load_runs(sweep))
    assert isinstance(table, pd.DataFrame)
    assert table.loc[("uniform", "execution"), "correlation with outcome"] == 1.0
    assert abs(table.loc[("uniform", "format"), "correlation with outcome"]) < 0.2
    assert table.loc[("uniform", "format"), "rollouts"] == 3 * 120


@pytest.mark.parametrize("draw", FIGURES)
def test_figures_draw_labelled_axes(draw: Callable[[list[Run]], Figure | Note], sweep: Path) -> None:
    figure = draw(artefacts.load_runs(sweep))
    assert isinstance(figure, Figure)
    image = io.BytesIO()
    figure.savefig(image, format="png")
    assert len(image.getvalue()) > 10_000
    panels = [axis for axis in figure.axes if axis.get_title()]
    assert panels
    assert any(axis.get_xlabel() for axis in panels)


def test_curves_hold_the_means(sweep: Path) -> None:
    runs = artefacts.load_runs(sweep)
    figure = figures.learning_curves(runs, x="minutes")
    assert isinstance(figure, Figure)
    lines = {line.get_label(): line for line in figure.axes[0].get_lines()}
    after = np.mean([r.summary["eval_after"]["execution_accuracy"] for r in runs if r.arm == "exponential"])
    x, y = lines["exponential"].get_data()
    assert y[-1] == pytest.approx(after)
    assert list(x) == pytest.approx([0, 5 * 8.5 / 60, 10 * 8.5 / 60])


def test_the_heat_map_shows_the_strategy(sweep: Path) -> None:
    figure = figures.credit_heat_map([run for run in artefacts.load_runs(sweep) if run.arm == "exponential"])
    assert isinstance(figure, Figure)
    (image,) = figure.axes[0].get_images()
    checker, writer = image.get_array().filled(np.nan)
    np.testing.assert_allclose(writer, [0.85**2, np.nan, 1.0])
    np.testing.assert_allclose(checker, [np.nan, 0.85, np.nan])


@pytest.mark.parametrize("artefact", ARTEFACTS)
def test_partial_artefacts_give_a_sentence_or_a_smaller_table(artefact: str, sweep: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(sweep / "0", tmp_path / "run"))
    whole = run / artefact
    files = sorted(whole.iterdir()) if whole.is_dir() else [whole]
    for damage in (b"", b"\x00{[\xff", None):  # empty, garbage, absent
        for file in files:
            file.unlink() if damage is None else file.write_bytes(damage)
        runs = artefacts.load_runs(run)
        for show in (*TABLES, *FIGURES):
            result = show(runs)
            assert isinstance(result, pd.DataFrame | Figure | Note), show
            assert not isinstance(result, Note) or result.endswith(".")


def test_no_run_is_an_error_that_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(artefacts.RUNS_VARIABLE, raising=False)
    with pytest.raises(ValueError, match="multirun"):
        artefacts.default_folder(tmp_path)
    with pytest.raises(ValueError, match=r"summary\.json"):
        artefacts.load_runs(tmp_path)


def test_the_newest_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(artefacts.RUNS_VARIABLE, raising=False)
    sweep = write_sweep(tmp_path / "multirun" / "today" / "noon", seeds=1)
    run = write_run(tmp_path / "runs" / "later", "uniform", 0)
    later = max(path.stat().st_mtime for path in artefacts.run_folders(tmp_path)) + 10
    os.utime(run, (later, later))
    assert artefacts.default_folder(tmp_path) == run
    os.utime(sweep / "0", (later + 10, later + 10))
    assert artefacts.default_folder(tmp_path) == sweep


@pytest.mark.parametrize("kind", ["sweep", "bare run"])
def test_the_notebook_runs_headless(kind: str, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "sweep":
        folder = sweep
    else:
        folder = tmp_path / "bare"
        folder.mkdir()
        shutil.copy(sweep / "0" / "summary.json", folder)
    monkeypatch.setenv(artefacts.RUNS_VARIABLE, str(folder))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # committed without results
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOK.parent)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = [mime for output in outputs for mime in output.get("data", ())]
    if kind == "sweep":
        assert kinds.count("image/png") == 5
        assert kinds.count("text/html") == 5  # tables; failures and overview are sentences
    else:
        assert "image/png" not in kinds
        assert kinds.count("text/markdown") >= 8
