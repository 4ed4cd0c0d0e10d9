"""The generated data set: same bytes from the same seed, sound databases, telling questions, clean splits."""

from __future__ import annotations

import collections
import json
import sqlite3
import threading
from pathlib import Path

import pytest

from experiments.spider import execution
from experiments.spider.evaluator import execution_match
from experiments.spider.generate import generate
from experiments.spider.generate.domains import DOMAINS
from experiments.spider.generate.draws import Draws
from experiments.spider.generate.phrases import plural
from experiments.spider.generate.questions import WORDINGS, shares
from experiments.spider.hardness import LEVELS, hardness
from experiments.spider.layout import Layout, load
from experiments.spider.tasks import compact_schema, part, tasks


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "generated"


@pytest.fixture(scope="module")
def layout(cache: Path) -> Layout:
    return load(generate(0, cache))


def test_draws_are_those_of_every_python() -> None:
    draws = Draws(1, "golden")
    assert [draws.index(1000) for _ in range(6)] == [584, 722, 202, 52, 647, 64]
    assert sorted(draws.shuffled(range(50))) == list(range(50))


def test_two_processes_and_two_calls_give_the_same_bytes(cache: Path, layout: Layout, tmp_path: Path) -> None:
    roots: list[Path] = []
    racers = [threading.Thread(target=lambda: roots.append(generate(0, tmp_path))) for _ in range(2)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    assert len(set(roots)) == 1
    assert [path.name for path in tmp_path.iterdir()] == [layout.root.name]  # no drafts are left
    for name in ("tables.json", "train_spider.json", "dev.json", "train_gold.sql", "dev_gold.sql"):
        assert (roots[0] / name).read_bytes() == (layout.root / name).read_bytes()
    assert generate(0, cache) == layout.root


def test_another_seed_gives_other_rows_and_questions(layout: Layout, tmp_path: Path) -> None:
    other = load(generate(1, tmp_path))
    known = {(question.db_id, question.question) for question in layout.dev}
    assert sum((question.db_id, question.question) in known for question in other.dev) < 50


def test_databases_are_sound(layout: Layout) -> None:
    assert len(DOMAINS) == 20
    for db_id, schema in layout.schemas.items():
        (path,) = layout.databases(db_id)
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
            for table in schema.tables:
                columns = tuple(row[1] for row in connection.execute(f"PRAGMA table_info({table})"))
                assert columns == schema.columns[table]
                (rows,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
                assert 20 <= rows <= 60
        connection.close()


def test_sizes_and_levels(layout: Layout) -> None:
    assert (len(layout.train), len(layout.dev)) == (3500, 500)
    levels = collections.Counter(hardness(question.query) for question in layout.train)
    for level, share in zip(LEVELS, (0.30, 0.35, 0.20, 0.15), strict=True):
        assert abs(levels[level] / len(layout.train) - share) < 0.02
    assert sum(shares(37).values()) == 37


def test_gold_queries_have_an_answer_that_another_query_of_the_database_hardly_gives(layout: Layout) -> None:
    results: dict[str, dict[str, tuple[object, ...]]] = collections.defaultdict(dict)
    for question in layout.dev:
        (path,) = layout.databases(question.db_id)
        result = execution.run(path, question.query)
        assert result.ok, (question, result)
        assert result.rows
        assert all(value is not None for row in result.rows for value in row), question
        results[question.db_id][question.query] = tuple(sorted(map(repr, result.rows)))
    pairs = same = 0
    for by_query in results.values():
        answers = list(by_query.values())
        pairs += len(answers) * (len(answers) - 1) // 2
        same += sum(answers[i] == answers[j] for i in range(len(answers)) for j in range(i))
    assert same / pairs < 0.01


def test_dev_is_not_in_train(layout: Layout) -> None:
    queries = {(question.db_id, question.query.lower()) for question in layout.train}
    texts = {(question.db_id, question.question.lower()) for question in (*layout.train, *layout.dev)}
    assert not [question for question in layout.dev if (question.db_id, question.query.lower()) in queries]
    assert len(texts) == len(layout.train) + len(layout.dev)
    wordings = collections.Counter((question.db_id, question.query) for question in layout.train)
    assert max(wordings.values()) == WORDINGS


def test_cross_db_keeps_databases_apart(tmp_path: Path) -> None:
    layout = load(generate(0, tmp_path, "cross_db"))
    train, dev = ({question.db_id for question in split} for split in (layout.train, layout.dev))
    assert (len(train), len(dev), train & dev) == (16, 4, set())
    assert (len(layout.train), len(layout.dev)) == (16 * (3500 // 16), 500)


def test_an_unknown_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'cross'.*cross_db"):
        generate(0, tmp_path, "cross")  # type: ignore[arg-type]


def test_files_have_spiders_keys(layout: Layout) -> None:
    records = json.loads((layout.root / "dev.json").read_text())
    keys = {"db_id", "query", "query_toks", "query_toks_no_value", "question", "question_toks", "sql"}
    assert all(set(record) == keys for record in records)
    lines = (layout.root / "dev_gold.sql").read_text().splitlines()
    assert lines == [f"{record['query']}\t{record['db_id']}" for record in records]
    named = next(record for record in records if "'" in record["query"])
    assert "value" in named["query_toks_no_value"]
    assert not any("'" in token for token in named["query_toks_no_value"])


@pytest.mark.parametrize(
    ("one", "many"),
    [("year of birth", "years of birth"), ("home country", "home countries"), ("dish", "dishes"), ("pay", "pays")],
)
def test_plurals(one: str, many: str) -> None:
    assert plural(one) == many


def test_parts_are_disjoint_and_do_not_depend_on_file_order(layout: Layout) -> None:
    parts = part(layout, demonstrations=300, validation=200, seed=3, eval_limit=50)
    assert (len(parts.demonstrations), len(parts.validation), len(parts.test)) == (300, 200, 50)
    assert len(parts.train) == 3000
    held = {(question.db_id, question.query) for question in parts.validation}
    assert not [q for q in (*parts.train, *parts.demonstrations) if (q.db_id, q.query) in held]
    turned = Layout(layout.root, layout.database_root, layout.schemas, layout.train[::-1], layout.dev[::-1])
    again = part(turned, demonstrations=300, validation=200, seed=3, eval_limit=50)
    assert (again.demonstrations, again.validation, again.test) == (parts.demonstrations, parts.validation, parts.test)
    with pytest.raises(ValueError, match="3400 demonstrations and 200 validation"):
        part(layout, demonstrations=3400, validation=200)


def test_tasks_show_the_agent_no_answer(layout: Layout) -> None:
    made = tasks(layout.dev[:40], layout)
    assert len({task.task_id for task in made}) == 40
    for task, question in zip(made, layout.dev, strict=False):
        assert set(task.input) == {"question", "db_id", "schema", "db_path"}
        assert question.query not in json.dumps(dict(task.input))
        assert task.tags == {"hardness": hardness(question.query), "db": question.db_id}
        assert execution_match(task.reference["databases"], task.reference["query"], question.query).match


def test_compact_schema(layout: Layout) -> None:
    assert compact_schema(layout.schemas["concerts"]) == (
        "singers ( singer_id name country age wealth ) concerts ( concert_id singer_id > singers city year attendance )"
    )
