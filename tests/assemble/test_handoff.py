"""After a hand-off no span encloses what comes next: the graph's own parent says who handed over."""

from __future__ import annotations

from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.assemble.trajectory import assemble
from lightning_jax.credit.assign import assign
from lightning_jax.credit.config import CreditConfig
from lightning_jax.types import Span, Trajectory
from tests.assemble.conftest import captured_spans, make_call, make_sealed, make_span

SCOPE = "openinference.instrumentation.openai_agents"


def agent(number: int, name: str, parent: int = 0, graph_parent: str = "") -> Span:
    attributes = {"openinference.span.kind": "AGENT", "agent.name": name, "graph.node.id": name}
    if graph_parent:
        attributes["graph.node.parent_id"] = graph_parent
    return make_span(SCOPE, number, parent, **attributes)


def llm(number: int, parent: int, call: str) -> Span:
    output = f'{{"id": "chatcmpl-{call}"}}'
    return make_span(SCOPE, number, parent, **{"openinference.span.kind": "LLM", "output.value": output})


def trajectory_of(spans: list[Span], *names: str) -> Trajectory:
    calls = [make_call(name, number) for number, name in enumerate(names)]
    return assemble(make_sealed(calls, spans), AgentNaming()).trajectory


def test_the_graphs_parent_is_kept_where_no_span_is_above() -> None:
    spans = [
        agent(1, "triage"), agent(2, "search", graph_parent="triage"), agent(3, "boss"),
        agent(4, "helper", 3, graph_parent="boss"), agent(5, "own", graph_parent="own"),
        llm(11, 1, "a"), llm(12, 2, "b"), llm(13, 4, "c"), llm(14, 5, "d"),
    ]  # fmt: skip
    found = {t.call_id: (t.agent, t.parents) for t in trajectory_of(spans, *"abcd").transitions}
    assert found == {
        "a": ("triage", ()),
        "b": ("search", ("triage",)),
        "c": ("helper", ("boss",)),  # said twice, kept once
        "d": ("own", ()),
    }


def test_a_real_hand_off_keeps_its_parent() -> None:
    names = ("fake0121", "fake0122", "fake0123")
    found = [(t.agent, t.parents) for t in trajectory_of(captured_spans("agents__oi_agents"), *names).transitions]
    assert ("triage_agent" in found[-1][1]) == (found[-1][0] == "search_agent")
    assert found[-1][0] == "search_agent"


def test_a_component_is_chosen_by_agent_or_by_agent_and_node() -> None:
    spans = []
    for number, node in enumerate(("write", "check"), 1):
        attributes = {
            "openinference.span.kind": "LLM",
            "metadata": f'{{"lc_agent_name":"sql","langgraph_node":"{node}"}}',
        }
        attributes["output.value"] = f'{{"id": "chatcmpl-{node}"}}'
        spans.append(make_span("openinference.instrumentation.langchain", number, **attributes))
    trajectory = trajectory_of(spans, "write", "check")
    assert [(t.agent, t.node) for t in trajectory.transitions] == [("sql", "write"), ("sql", "check")]
    for component, weights in (("sql", [1, 1]), ("sql/write", [1, 0]), (".*/check", [0, 1]), ("write", [0, 0])):
        credits = assign(trajectory, 1.0, CreditConfig(component=component))
        assert credits.loss_weights.tolist() == weights
