"""Spider's folder is read unchanged, and a wrong one is described."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from experiments.spider.layout import load
from experiments.spider.score import main
from tests.spider.toy import singers

SCHEMA: dict[str, Any] = {
    "db_id": "music",
    "table_names": ["singer", "song"],
    "table_names_original": ["singer", "song"],
    "column_names_original": [[-1, "*"], [0, "id"], [0, "name"], [1, "sid"]],
    "column_types": ["text", "number", "text", "number"],
    "primary_keys": [1],
    "foreign_keys": [[3, 1]],
}
GOLD = "SELECT name FROM singer"


def question(query: str = GOLD) -> dict[str, Any]:
    return {"db_id": "music", "question": "Who sings?", "query": query, "sql": {}, "query_toks": []}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    singers(tmp_path / "database/music/music.sqlite")
    singers(tmp_path / "test_database/music/music.sqlite")
    singers(tmp_path / "test_database/music/music_suite1.sqlite", [(1, "Eve", 9, "UK")])
    (tmp_path / "tables.json").write_text(json.dumps([SCHEMA]))
    (tmp_path / "train_spider.json").write_text(json.dumps([question(), question("SELECT id FROM singer")]))
    (tmp_path / "dev.json").write_text(json.dumps([question()]))
    return tmp_path


def test_a_layout(root: Path) -> None:
    (root / "train_others.json").write_text(json.dumps([question("SELECT age FROM singer")]))
    layout = load(root)
    assert [(q.split, q.index, q.query) for q in layout.train] == [
        ("train", 0, GOLD),
        ("train", 1, "SELECT id FROM singer"),
        ("train", 2, "SELECT age FROM singer"),
    ]
    assert [(q.split, q.db_id, q.question) for q in layout.dev] == [("dev", "music", "Who sings?")]
    schema = layout.schemas["music"]
    assert schema.columns == {"singer": ("id", "name"), "song": ("sid",)}
    assert schema.types == {"singer": ("number", "text"), "song": ("number",)}
    assert schema.primary_keys == (("singer", "id"),)
    assert schema.foreign_keys == ((("song", "sid"), ("singer", "id")),)
    assert layout.databases("music") == (root / "database/music/music.sqlite",)


def test_a_test_suite_has_several_databases(root: Path) -> None:
    files = load(root, database_dir="test_database").databases("music")
    assert [path.name for path in files] == ["music.sqlite", "music_suite1.sqlite"]


def test_composite_keys_written_as_lists(root: Path) -> None:
    (root / "tables.json").write_text(json.dumps([{**SCHEMA, "primary_keys": [[1, 2]]}]))
    assert load(root).schemas["music"].primary_keys == (("singer", "id"), ("singer", "name"))


def test_missing_and_malformed_files_are_named(root: Path) -> None:
    (root / "database/music/music.sqlite").unlink()
    with pytest.raises(FileNotFoundError, match=r"no \*.sqlite file .*ROOT/database/<db_id>"):
        load(root)
    (root / "tables.json").write_text("[]")
    with pytest.raises(ValueError, match=r"'music', which .* does not describe"):
        load(root)
    (root / "tables.json").write_text(json.dumps([{**SCHEMA, "foreign_keys": [[3, 99]]}]))
    with pytest.raises(ValueError, match=r"record 0 of .* is no Spider schema"):
        load(root)
    (root / "dev.json").write_text('[{"question": "?"}]')
    (root / "tables.json").write_text(json.dumps([SCHEMA]))
    with pytest.raises(ValueError, match=r"record 0 of .*dev.json has no 'db_id'"):
        load(root)
    (root / "dev.json").write_text("{")
    with pytest.raises(ValueError, match="is no JSON"):
        load(root)
    (root / "tables.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"tables.json is missing; a Spider layout is"):
        load(root)


def test_score_command(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    oracle = root / "oracle.jsonl"
    pairs = [
        {"db_id": "music", "gold": GOLD, "pred": "SELECT country FROM singer", "exec": 0, "exec_keep_distinct": 0},
        {"db_id": "music", "gold": GOLD, "pred": GOLD, "exec": 1},
        {"db_id": "music", "gold": GOLD, "pred": GOLD + " LIMIT 1", "exec": 1},
    ]
    oracle.write_text("\n".join(map(json.dumps, pairs)))
    (root / "dev.json").write_text(json.dumps([question("SELECT * FROM band")]))
    assert main(["--root", str(root), "--oracle", str(oracle)]) == 1
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [report[key] for key in ("gold_n", "gold_ok", "n", "agree")] == [3, 2, 3, 2]
    assert "no such table: band" in report["differences"][0]["reason"]
    assert report["differences"][1]["pred"] == GOLD + " LIMIT 1"
    (root / "dev.json").write_text("[]")
    assert main(["--root", str(root)]) == 0
    assert main(["--root", str(root / "nowhere")]) == 2
