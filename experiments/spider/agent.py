"""A text-to-SQL agent: write a query, run it, check it, rewrite it until it runs and the check is content.

An ordinary LangGraph program that talks to any OpenAI-compatible endpoint. It knows nothing of how its model is served
or trained; prompts are text files beside it. Queries run read-only, under limits, on the SQLite file of the task.

    write -> execute -> check -> end
                ^  |       |
                |  v error v wrong
                + rewrite <+         at most max_turns times
"""

from __future__ import annotations

import functools
import os
import re
import sqlite3
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import certifi
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

MAX_TURNS = 2
MAX_ROWS = 1_000  # rows read of a result; more are only mentioned
SHOWN_ROWS = {"short": 2, "full": 10}  # rows of a result that the model gets to see
MAX_RESULT_CHARS = {"short": 120, "full": 1_500}
MAX_SQL_CHARS = 4_000
MAX_STEPS = 5_000_000  # of SQLite's virtual machine: how a query ends must not depend on how busy the machine is
STEPS_PER_CHECK = 10_000
TIMEOUT_S = 5.0  # the backstop
MAX_VALUE_BYTES = 100_000

RIGHT, WRONG, UNCHECKED = "CORRECT", "WRONG", "UNCHECKED"
ERROR = "error: "  # how the result of a query that failed begins
_FENCE = re.compile(r"```[ \t]*(?:sqlite|sql)?[ \t]*\n?(.*?)(?:```|\Z)", re.DOTALL | re.IGNORECASE)
_VERDICT = re.compile(r"\b(NOT\s+CORRECT|INCORRECT|WRONG|CORRECT)\b")
_READS = frozenset((sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE))


class State(TypedDict, total=False):
    """What travels through the graph."""

    question: str
    schema: str
    db_path: str
    query: str
    result: str
    verdict: str
    queries: list[str]
    turns: int


@dataclass(frozen=True)
class Context:
    """What one run brings beside its state."""

    client: ChatOpenAI


def solve(
    task_input: dict[str, Any],
    *,
    base_url: str | None = None,
    api_key: str | None = None,
    model: str = "policy",
    max_turns: int = MAX_TURNS,
    prompts: str = "short",
    temperature: float | None = None,
) -> dict[str, Any]:
    """Answer `task_input["question"]` by a query on the SQLite file `task_input["db_path"]`.

    Args:
        task_input: question, schema (text for the prompt) and db_path.
        base_url, api_key: the endpoint; OPENAI_BASE_URL and OPENAI_API_KEY where not given.
        max_turns: rewrites at most; 0 writes one query and checks nothing.
        prompts: the folder of prompts beside this file: "short" or "full".
        temperature: sent only if given.

    Returns:
        query (the last one), queries (all that were run), turns (rewrites made), verdict
        (CORRECT or WRONG of the last check; UNCHECKED where the query failed or no rewrite could have followed).
    """
    client = _client(base_url, api_key, model, temperature)
    start: State = {key: str(task_input[key]) for key in ("question", "schema", "db_path")}  # type: ignore[assignment]
    limit = RunnableConfig(recursion_limit=10 + 4 * max_turns)
    state = graph(max_turns, prompts).invoke(start, limit, context=Context(client))
    return {key: state[key] for key in ("query", "queries", "turns", "verdict")}


@functools.lru_cache(maxsize=16)
def graph(max_turns: int, prompts: str) -> CompiledStateGraph[State, Context, State, State]:
    """The compiled graph; compiling costs more than running it, so once per process and settings."""
    build = StateGraph(State, context_schema=Context)
    build.add_node("write", _writer(prompts, "write"))
    build.add_node("execute", functools.partial(_execute, prompts=prompts))
    build.add_node("check", _checker(prompts))
    build.add_node("rewrite", _writer(prompts, "rewrite"))
    build.add_edge(START, "write")
    build.add_edge("write", "execute")
    build.add_edge("rewrite", "execute")
    build.add_conditional_edges("execute", functools.partial(_after, max_turns=max_turns), ["check", "rewrite", END])
    build.add_conditional_edges("check", lambda s: END if s["verdict"] == RIGHT else "rewrite", ["rewrite", END])
    return build.compile()


def _after(state: State, max_turns: int) -> str:
    """What follows an execution: nobody need judge a query that failed, and no check a query that stays anyway."""
    if state["turns"] >= max_turns:
        return END
    return "rewrite" if state["result"].startswith(ERROR) else "check"


def messages(prompts: str, role: str, state: State) -> list[SystemMessage | HumanMessage]:
    """The conversation that the node `role` (write, check, rewrite) sends."""
    fields = {key: state.get(key, "") for key in ("question", "schema", "query", "result")}
    return [
        SystemMessage(prompt(prompts, f"{role}.system")),
        HumanMessage(prompt(prompts, f"{role}.user").format(**fields)),
    ]


@functools.cache
def prompt(prompts: str, name: str) -> str:
    """The text of prompts/<prompts>/<name>.txt."""
    folder = Path(__file__).resolve().parent / "prompts"
    path = folder / prompts / f"{name}.txt"
    if not path.is_file():
        known = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
        raise ValueError(f"there is no prompt {name!r} in {prompts!r}: prompts must be one of {known}")
    return path.read_text(encoding="utf-8").rstrip("\n")


def _writer(prompts: str, role: str) -> Any:
    def write(state: State, runtime: Runtime[Context]) -> State:
        answer = runtime.context.client.invoke(messages(prompts, role, state))
        turns = state["turns"] + 1 if role == "rewrite" else 0
        return {"query": read_query(answer.text), "turns": turns, "verdict": UNCHECKED}

    return write


def _checker(prompts: str) -> Any:
    def check(state: State, runtime: Runtime[Context]) -> State:
        answer = runtime.context.client.invoke(messages(prompts, "check", state))
        return {"verdict": read_verdict(answer.text)}

    return check


def _execute(state: State, prompts: str) -> State:
    query = state["query"]
    return {"result": run_query(state["db_path"], query, prompts), "queries": [*state.get("queries", []), query]}


def read_query(answer: str) -> str:
    """The SQL in a model's answer: the last code block that has text, else the whole text; no final semicolon."""
    blocks = [block.strip() for block in _FENCE.findall(answer) if block.strip()]
    return (blocks[-1] if blocks else answer).strip().rstrip("; \n")


def read_verdict(answer: str) -> str:
    """CORRECT where the last line with a verdict (else the whole text) says so; WRONG in every other case."""
    for line in reversed(answer.upper().splitlines()):
        words = _VERDICT.findall(line)
        if words:
            return RIGHT if all(word == "CORRECT" for word in words) else WRONG
    return WRONG


def run_query(db_path: str, query: str, prompts: str = "short") -> str:
    """What the model is shown of a query's result: "3 rows | 'Anna' , 30 | ..." or "error: no such column: x"."""
    try:
        rows = _rows(db_path, query)
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        text = " ".join(str(error).split())
        return ERROR + ("query took too long" if text == "interrupted" else text)[: MAX_RESULT_CHARS[prompts]]
    count = f"more than {MAX_ROWS} rows" if len(rows) > MAX_ROWS else "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    shown = [" , ".join(_value(value) for value in row) for row in rows[: SHOWN_ROWS[prompts]]]
    return " | ".join([count, *shown])[: MAX_RESULT_CHARS[prompts]]


def _value(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.0f}"
    return f"'{value}'" if isinstance(value, str) else str(value)


def _rows(db_path: str, query: str) -> list[tuple[Any, ...]]:
    """At most MAX_ROWS + 1 rows of one SELECT. sqlite3.Error, or ValueError for what is not even tried."""
    if not query or len(query) > MAX_SQL_CHARS or "\0" in query:
        raise ValueError("no query" if not query else f"not a query of at most {MAX_SQL_CHARS} characters")
    connection = sqlite3.connect(Path(db_path).resolve().as_uri() + "?mode=ro&immutable=1", uri=True)
    try:
        connection.text_factory = lambda raw: raw.decode(errors="replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
        connection.set_authorizer(_authorize)
        connection.set_progress_handler(_budget(), STEPS_PER_CHECK)
        return connection.execute(query).fetchmany(MAX_ROWS + 1)
    finally:
        connection.close()


def _authorize(action: int, first: str | None, second: str | None, database: str | None, trigger: str | None) -> int:
    denied = action not in _READS or (second or "").lower() == "load_extension"
    return sqlite3.SQLITE_DENY if denied else sqlite3.SQLITE_OK


def _budget() -> Callable[[], bool]:
    """A progress handler that ends the query when its steps or its time are used up."""
    left, deadline = MAX_STEPS // STEPS_PER_CHECK, time.monotonic() + TIMEOUT_S

    def spent() -> bool:
        nonlocal left
        left -= 1
        return left < 0 or time.monotonic() > deadline

    return spent


def _client(base_url: str | None, api_key: str | None, model: str, temperature: float | None) -> ChatOpenAI:
    """A chat model for one endpoint. Connections are kept: an HTTP client is far dearer than this object."""
    sync, asynchronous = _connections()
    options: dict[str, Any] = {"api_key": api_key}
    if temperature is not None:
        options["temperature"] = temperature
    return ChatOpenAI(model=model, base_url=base_url, http_client=sync, http_async_client=asynchronous, **options)


_kept = threading.local()


def _connections() -> tuple[DefaultHttpxClient, DefaultAsyncHttpxClient]:
    """The HTTP clients of this thread: many threads on one pool spend a third of their time waiting for its lock."""
    if getattr(_kept, "process", None) != os.getpid():  # a forked child cannot share its parent's connections
        _kept.process = os.getpid()
        _kept.clients = DefaultHttpxClient(verify=_trust()), DefaultAsyncHttpxClient(verify=_trust())
    clients: tuple[DefaultHttpxClient, DefaultAsyncHttpxClient] = _kept.clients
    return clients


@functools.cache
def _trust() -> ssl.SSLContext:
    """The certificates to trust; reading them is what makes an HTTP client expensive."""
    return ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE") or certifi.where())
