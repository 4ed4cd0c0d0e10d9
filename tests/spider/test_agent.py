"""The agent against a real endpoint on a real socket that answers from a script."""

from __future__ import annotations

import ast
import json
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from experiments.spider import agent


class Endpoint:
    """An OpenAI-compatible endpoint that gives the scripted answers in turn; an int is an HTTP status."""

    def __init__(self, script: list[str | int]) -> None:
        self.script, self.requests, self.keys, self.paths = list(script), [], [], []
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None: ...

            def do_POST(self) -> None:
                endpoint.requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                endpoint.keys.append(self.headers["authorization"])
                endpoint.paths.append(self.path)
                answer = endpoint.script.pop(0)
                status = answer if isinstance(answer, int) else 200
                body = json.dumps(_completion(str(answer))).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(body)))
                if status != 200:
                    self.send_header("retry-after-ms", "1")
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def users(self) -> list[str]:
        return [request["messages"][1]["content"] for request in self.requests]

    def systems(self) -> list[str]:
        return [request["messages"][0]["content"] for request in self.requests]


def _completion(text: str) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "policy"}
    return {**head, "choices": [choice], "usage": usage}


@pytest.fixture
def serve() -> Iterator[Callable[..., Endpoint]]:
    running: list[Endpoint] = []

    def start(*script: str | int) -> Endpoint:
        running.append(Endpoint(list(script)))
        return running[-1]

    yield start
    for endpoint in running:
        endpoint.close()


@pytest.fixture
def task(tmp_path: Path) -> dict[str, Any]:
    path = tmp_path / "people.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE person (name TEXT, age INTEGER, size REAL)")
        rows = [("Ann", 30, 1.75), ("Bob", 41, 1.8), ("Cy", None, 2 / 3)]
        connection.executemany("INSERT INTO person VALUES (?, ?, ?)", rows)
    connection.close()
    schema = "person ( name age size )"
    return {"question": "How old is {Ann}?", "schema": schema, "db_path": str(path), "db_id": "people"}


def test_a_query_that_passes_the_check_ends_the_run(serve: Callable[..., Endpoint], task: dict[str, Any]) -> None:
    endpoint = serve("```sql\nSELECT age FROM person WHERE name = 'Ann';\n```", "CORRECT")
    result = agent.solve(task, base_url=endpoint.base_url, api_key="secret")
    query = "SELECT age FROM person WHERE name = 'Ann'"
    assert result == {"query": query, "queries": [query], "turns": 0, "verdict": "CORRECT"}
    assert endpoint.systems() == ["write sql", "check sql"]
    assert endpoint.users() == [
        "tables person ( name age size )\nHow old is {Ann}?",
        f"ask How old is {{Ann}}?\n{query}\n1 row | 30",
    ]
    assert endpoint.keys == ["Bearer secret"] * 2
    assert not {"temperature", "n", "seed"} & set(endpoint.requests[0])
    assert endpoint.requests[0]["model"] == "policy"


def test_a_failed_query_is_rewritten_with_its_error(serve: Callable[..., Endpoint], task: dict[str, Any]) -> None:
    endpoint = serve("SELECT wage FROM person", "SELECT age FROM person", "That is CORRECT.")
    result = agent.solve(task, base_url=endpoint.base_url, api_key="k", temperature=0.5)
    assert result["queries"] == ["SELECT wage FROM person", "SELECT age FROM person"]
    assert (result["query"], result["turns"], result["verdict"]) == ("SELECT age FROM person", 1, "CORRECT")
    assert endpoint.systems() == ["write sql", "rewrite sql", "check sql"]
    assert endpoint.users()[1] == (
        "tables person ( name age size )\nHow old is {Ann}?\nSELECT wage FROM person\nerror: no such column: wage"
    )
    assert endpoint.requests[0]["temperature"] == 0.5


def test_a_rejected_query_is_rewritten(serve: Callable[..., Endpoint], task: dict[str, Any]) -> None:
    endpoint = serve("SELECT size FROM person", "WRONG", "SELECT age FROM person", "CORRECT")
    result = agent.solve(task, base_url=endpoint.base_url, api_key="k")
    assert (result["query"], result["turns"], result["verdict"]) == ("SELECT age FROM person", 1, "CORRECT")
    assert endpoint.systems() == ["write sql", "check sql", "rewrite sql", "check sql"]


@pytest.mark.parametrize(("max_turns", "calls"), [(0, 1), (1, 3), (3, 7)])
def test_rewrites_end_at_max_turns(
    serve: Callable[..., Endpoint], task: dict[str, Any], max_turns: int, calls: int
) -> None:
    endpoint = serve(*(["SELECT 1", "WRONG"] * 4)[:calls])
    result = agent.solve(task, base_url=endpoint.base_url, api_key="k", max_turns=max_turns)
    assert (len(endpoint.requests), result["turns"], result["verdict"]) == (calls, max_turns, "UNCHECKED")


def test_an_endpoint_that_fails_once_is_asked_again(serve: Callable[..., Endpoint], task: dict[str, Any]) -> None:
    endpoint = serve(503, "SELECT 1", "CORRECT")
    assert agent.solve(task, base_url=endpoint.base_url, api_key="k")["query"] == "SELECT 1"
    assert endpoint.requests[0] == endpoint.requests[1]


def test_the_environment_names_the_endpoint(
    serve: Callable[..., Endpoint], task: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = serve("SELECT 1", "CORRECT")
    monkeypatch.setenv("OPENAI_BASE_URL", endpoint.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "from-env")
    agent.solve(task)
    assert endpoint.keys == ["Bearer from-env"] * 2


def test_concurrent_runs_keep_to_their_endpoints(serve: Callable[..., Endpoint], task: dict[str, Any]) -> None:
    endpoints = [serve(f"SELECT {i}", "CORRECT") for i in range(8)]
    results: dict[int, str] = {}

    def run(i: int) -> None:
        results[i] = agent.solve(task, base_url=endpoints[i].base_url + f"/run/{i}", api_key=f"key-{i}")["query"]

    threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {i: f"SELECT {i}" for i in range(8)}
    for i, endpoint in enumerate(endpoints):
        assert endpoint.keys == [f"Bearer key-{i}"] * 2
        assert endpoint.paths == [f"/v1/run/{i}/chat/completions"] * 2


def test_full_prompts_hold_all_a_role_needs(serve: Callable[..., Endpoint], task: dict[str, Any]) -> None:
    endpoint = serve("```\nSELECT 1\n```", "It lacks the name.\nWRONG", "SELECT 2", "All is right.\nCORRECT")
    result = agent.solve(task, base_url=endpoint.base_url, api_key="k", prompts="full")
    assert result["queries"] == ["SELECT 1", "SELECT 2"]
    for system, user in zip(endpoint.systems(), endpoint.users(), strict=True):
        assert len(system.split()) > 150
        assert "How old is {Ann}?" in user
        assert "person ( name age size )" in user
    assert "SELECT 1" in endpoint.users()[1]
    with pytest.raises(ValueError, match=r"\['full', 'short'\]"):
        agent.solve(task, base_url=endpoint.base_url, api_key="k", prompts="long")


@pytest.mark.parametrize(
    ("answer", "query"),
    [
        ("SELECT 1", "SELECT 1"),
        ("  SELECT 1 ;\n", "SELECT 1"),
        ("Here:\n```sql\nSELECT 1;\n```\nDone.", "SELECT 1"),
        ("```SQL SELECT 1```", "SELECT 1"),
        ("First\n```\nSELECT 1\n```\nbetter\n```sqlite\nSELECT 2\n```", "SELECT 2"),
        ("```sql\nSELECT 1", "SELECT 1"),
        ("", ""),
    ],
)
def test_read_query(answer: str, query: str) -> None:
    assert agent.read_query(answer) == query


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("CORRECT", "CORRECT"),
        ("correct.", "CORRECT"),
        ("The join looked WRONG at first, but it is right.\n\n**CORRECT**", "CORRECT"),
        ("The columns are correct.\nWRONG", "WRONG"),
        ("INCORRECT", "WRONG"),
        ("This is not correct", "WRONG"),
        ("CORRECT or WRONG", "WRONG"),
        ("no idea", "WRONG"),
        ("", "WRONG"),
    ],
)
def test_read_verdict(answer: str, verdict: str) -> None:
    assert agent.read_verdict(answer) == verdict


def test_results_are_shown_short(task: dict[str, Any]) -> None:
    path = task["db_path"]
    assert agent.run_query(path, "SELECT * FROM person") == "3 rows | 'Ann' , 30 , 1.75 | 'Bob' , 41 , 1.8"
    assert agent.run_query(path, "SELECT age, size FROM person WHERE name = 'Cy'") == "1 row | NULL , 0.6667"
    assert agent.run_query(path, "SELECT * FROM person WHERE age > 99") == "0 rows"
    assert len(agent.run_query(path, "SELECT hex(zeroblob(4000))")) == 120
    assert agent.run_query(path, "").startswith("error: ")


def test_no_query_does_harm(task: dict[str, Any], tmp_path: Path) -> None:
    path = Path(task["db_path"])
    before = path.read_bytes()
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT "
    for query in (
        "DROP TABLE person",
        "INSERT INTO person VALUES ('Dan', 1, 1)",
        f"ATTACH DATABASE '{tmp_path / 'new.sqlite'}' AS new",
        "PRAGMA journal_mode = WAL",
        "SELECT 1; SELECT 2",
        "SELECT load_extension('x')",
        "SELECT hex(zeroblob(900000000))",
        "SELECT '\0'",
        endless + "count(*) FROM n",
    ):
        assert agent.run_query(str(path), query).startswith("error: "), query
    assert agent.run_query(str(path), endless + "i FROM n").startswith("more than 1000 rows | 1 | 2")
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert agent.run_query(str(tmp_path / "none.sqlite"), "SELECT 1").startswith("error: unable to open")


def test_the_agent_knows_nothing_of_its_trainer() -> None:
    tree = ast.parse(Path(agent.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.split(".")[0] for name in names}
    assert roots <= {"certifi", "langchain_core", "langchain_openai", "langgraph", "openai"} | set(
        sys.stdlib_module_names
    )
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.level]
