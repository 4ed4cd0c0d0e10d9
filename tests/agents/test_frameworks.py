"""Agents as people write them: only base URL and key are ours. Eight rollouts at once in one process, each its own."""

from __future__ import annotations

import asyncio
import operator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import openai
import pytest

from tests.agents.conftest import DIGIT, Stage, call, say

pytestmark = pytest.mark.agents


def together(stage: Stage, solve: Any) -> list[Any]:
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(solve, stage.rollouts))


async def gathered(stage: Stage, solve: Any) -> list[Any]:
    return await asyncio.gather(*(solve(number) for number in stage.rollouts))


def last_texts(stage: Stage) -> list[str]:
    return [stage.server.sink.of(number)[-1].text for number in stage.rollouts]


@pytest.mark.parametrize("stream", [False, True])
def test_langchain_create_agent(stage, stream):
    agents = pytest.importorskip("langchain.agents")
    from langchain_openai import ChatOpenAI

    stage.play(lambda prompt: say("It is ") if "looked up" in prompt else call("look_up", key=DIGIT))

    def look_up(key: int) -> str:
        """Look a number up."""
        return f"looked up {key}"

    def solve(number: int) -> str:
        llm = ChatOpenAI(model="policy", **stage.endpoint(number))
        agent = agents.create_agent(llm, tools=[look_up], system_prompt="You look things up.")
        start = {"messages": [{"role": "user", "content": f"This is task-{number}."}]}
        if not stream:
            return str(agent.invoke(start)["messages"][-1].content)
        pieces = [chunk for chunk, _ in agent.stream(start, stream_mode="messages") if chunk.type.startswith("AI")]
        return "".join(str(p.content) for p in pieces)

    assert together(stage, solve) == last_texts(stage)
    stage.check(per_rollout=2, speakers=1)


def test_langgraph_write_check_rewrite(stage):
    graph = pytest.importorskip("langgraph.graph")
    from langchain_openai import ChatOpenAI

    stage.play(lambda prompt: say("WRONG ") if "You check" in prompt else say("SELECT "))

    class State(TypedDict):
        task: str
        drafts: Annotated[list[str], operator.add]
        verdict: str

    def solve(number: int) -> str:
        llm = ChatOpenAI(model="policy", **stage.endpoint(number))

        def ask(role: str, state: State) -> str:
            return str(
                llm.invoke([("system", f"You {role}."), ("user", " ".join([state["task"], *state["drafts"]]))]).content
            )

        build = graph.StateGraph(State)
        build.add_node("write", lambda s: {"drafts": [ask("write", s)]})
        build.add_node("check", lambda s: {"verdict": ask("check", s)})
        build.add_node("rewrite", lambda s: {"drafts": [ask("rewrite", s)]})
        build.add_edge(graph.START, "write")
        build.add_edge("write", "check")
        build.add_conditional_edges("check", lambda s: "rewrite" if "WRONG" in s["verdict"] else graph.END)
        build.add_edge("rewrite", graph.END)
        end = build.compile().invoke({"task": f"This is task-{number}.", "drafts": [], "verdict": ""})
        return str(end["drafts"][-1])

    assert together(stage, solve) == last_texts(stage)
    stage.check(per_rollout=3, speakers=3)


@pytest.mark.parametrize("endpoint", ["responses", "chat"])
@pytest.mark.parametrize("stream", [False, True])
async def test_openai_agents_hand_off(stage, endpoint, stream, monkeypatch):
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
    sdk = pytest.importorskip("agents", reason="pip install openai-agents")
    if not hasattr(sdk, "OpenAIResponsesModel"):
        pytest.skip("the package `agents` here is another one")
    sdk.set_tracing_disabled(True)

    def scene(prompt: str) -> str:
        if "found:" in prompt:
            return say("Paris ")
        return call("search", query=DIGIT) if "Answer using search" in prompt else call("transfer_to_searcher")

    stage.play(scene)

    @sdk.function_tool
    def search(query: int) -> str:
        """Search the corpus."""
        return f"found: {query}"

    async def solve(number: int) -> str:
        client = openai.AsyncOpenAI(**stage.endpoint(number))
        kind = sdk.OpenAIResponsesModel if endpoint == "responses" else sdk.OpenAIChatCompletionsModel
        model = kind(model="policy", openai_client=client)
        searcher = sdk.Agent(name="searcher", instructions="Answer using search.", tools=[search], model=model)
        triage = sdk.Agent(name="triage", instructions="Hand off.", handoffs=[searcher], model=model)
        if stream:
            result = sdk.Runner.run_streamed(triage, f"This is task-{number}.")
            async for _ in result.stream_events():
                pass
        else:
            result = await sdk.Runner.run(triage, f"This is task-{number}.")
        assert result.last_agent.name == "searcher"
        return str(result.final_output)

    assert await gathered(stage, solve) == last_texts(stage)
    stage.check(per_rollout=3, speakers=2)


@pytest.mark.parametrize("endpoint", ["responses", "chat"])
async def test_pydantic_ai(stage, endpoint):
    pytest.importorskip("pydantic_ai", reason="pip install 'pydantic-ai-slim[openai]'")
    from pydantic import BaseModel, Field
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Answer(BaseModel):
        number: int = Field(ge=0, le=99)

    async def solve(number: int) -> int:
        kind = OpenAIResponsesModel if endpoint == "responses" else OpenAIChatModel
        model = kind("policy", provider=OpenAIProvider(**stage.endpoint(number)))
        result = await Agent(model, output_type=Answer).run(f"This is task-{number}.")
        return result.output.number

    stage.play(None)  # typed output is tool_choice=required, which the server itself enforces
    answers = await gathered(stage, solve)
    assert all(0 <= a <= 99 for a in answers)
    assert all(f'"number": {a}' in t for a, t in zip(answers, last_texts(stage), strict=True))
    stage.check(per_rollout=1, speakers=1)


async def test_autogen_assistant_with_a_tool(stage):
    agents = pytest.importorskip(
        "autogen_agentchat.agents",
        reason="pip install autogen-agentchat 'autogen-ext[openai]' in a venv of its own: it pins protobuf 5.29",
    )
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    stage.play(lambda prompt: say("It is ") if "looked up" in prompt else call("look_up", key=DIGIT))

    async def look_up(key: int) -> str:
        """Look a number up."""
        return f"looked up {key}"

    async def solve(number: int) -> str:
        info = {
            "vision": False, "function_calling": True, "json_output": True, "family": "unknown",
            "structured_output": True,
        }  # fmt: skip
        model = OpenAIChatCompletionClient(model="policy", model_info=info, **stage.endpoint(number))
        agent = agents.AssistantAgent("helper", model, tools=[look_up], reflect_on_tool_use=True)
        result = await agent.run(task=f"This is task-{number}.")
        return str(result.messages[-1].content)

    assert await gathered(stage, solve) == last_texts(stage)
    stage.check(per_rollout=2, speakers=2)  # it reflects without tools


async def test_plain_openai_sync_async_and_streamed(stage):
    stage.play(lambda prompt: say("Well: "))

    def options(number: int, **more: Any) -> dict[str, Any]:
        return {"model": "policy", "messages": [{"role": "user", "content": f"This is task-{number}."}], **more}

    def sync(number: int) -> str | None:
        with openai.OpenAI(**stage.endpoint(number)) as api:
            return api.chat.completions.create(**options(number)).choices[0].message.content

    async def streamed(number: int) -> str:
        async with openai.AsyncOpenAI(**stage.endpoint(number)) as api:
            chunks = await api.chat.completions.create(**options(number, stream=True))
            return "".join([c.choices[0].delta.content or "" async for c in chunks if c.choices])

    first = await asyncio.to_thread(together, stage, sync)
    assert first == last_texts(stage)
    assert await gathered(stage, streamed) == last_texts(stage)
    stage.check(per_rollout=2, speakers=1)
