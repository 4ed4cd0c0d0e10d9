"""A real policy server with a tiny random policy, led through each agent's conversation by grammars.

A random model would never call a tool or finish a hand-off. `Led` gives every request without a grammar of its own the
one that the scene asks for, by what the prompt says; sampling, log-probs, HTTP and recording are those of any run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from lightning_jax.assemble.naming import AgentNaming
from lightning_jax.assemble.trajectory import assemble
from lightning_jax.serve.engine import Engine, EngineConfig
from lightning_jax.serve.grammar import Constrainer, literal
from lightning_jax.serve.tools import forced_call
from lightning_jax.types import Outcome, SealedAttempt
from tests.agents.wire import Tap
from tests.serve.conftest import MODEL, Server, byte_tokenizer, policy, serving

WIDE = replace(MODEL, max_position=4096)
ENGINE = EngineConfig(slots=8, max_length=4096, prefill_chunk=64, prefill_rows=8, load_rows=32, decode_steps=4)
Scene = Callable[[str], str]  # what the prompt says → grammar of the answer


def say(text: str) -> str:
    """The answer is this text and one digit of the policy's choice."""
    return f"start: {literal(text)} /[0-9]/"


def call(name: str, **properties: Any) -> str:
    """The answer is a call of this tool with arguments of the policy's choice."""
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return forced_call("hermes", [{"function": {"name": name, "parameters": schema}}])


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}


class Led(Engine):
    """An engine whose answers follow a scene."""

    scene: Scene | None = None
    tokenizer = byte_tokenizer()
    constrainer = Constrainer(tokenizer, WIDE.vocab_size)

    def submit(self, request, on_chunk=None):
        if request.grammar is None and self.scene is not None:
            lark = self.scene(self.tokenizer.decode(request.prompt_ids.tolist()))
            request = replace(request, grammar=self.constrainer.compile(lark, "scene"))
        return super().submit(request, on_chunk)


@pytest.fixture(scope="session")
def led() -> Iterator[Led]:
    engine = Led(WIDE, ENGINE, (256,))
    engine.start(policy(), 0)
    yield engine
    engine.stop()


@dataclass
class Stage:
    """The server, and what its calls must look like afterwards."""

    server: Server
    led: Led
    tap: Tap
    rollouts: range = field(default_factory=lambda: range(8))

    def play(self, scene: Scene | None) -> None:
        self.led.scene = scene

    def endpoint(self, number: int) -> dict[str, str]:
        return {"base_url": self.server.base_url(number), "api_key": f"ljx-key-{number}"}

    def check(self, per_rollout: int, speakers: int) -> None:
        """Every rollout has its calls, of its own task only, with token ids and log-probs, by so many speakers."""
        for number in self.rollouts:
            calls = self.server.sink.of(number)
            assert [c.sequence for c in calls] == list(range(per_rollout))
            assert len({c.agent_key for c in calls}) == speakers
            for c in calls:
                prompt = self.led.tokenizer.decode(c.prompt_ids.tolist())
                assert f"task-{number}." in prompt
                assert not any(f"task-{other}." in prompt for other in self.rollouts if other != number)
                assert len(c.response_ids) == len(c.rollout_logps) > 0
                assert np.isfinite(c.rollout_logps).all()
                assert self.led.tokenizer.decode(c.response_ids.tolist()) == c.text
            self.check_transitions(number)

    def check_transitions(self, number: int) -> None:
        """What is trained on is what the agent's wire showed: token for token, in the order that it asked."""
        grant = self.server.sink.grants[f"ljx-key-{number}"]
        calls = tuple(self.server.sink.of(number))
        sealed = SealedAttempt(1, grant.rollout, grant.attempt_id, Outcome("succeeded"), calls, (), ())
        assembled = assemble(sealed, AgentNaming.of({}))
        assert not assembled.quarantined
        shown = self.tap.of(grant.attempt_id)
        assert len(shown) == len(assembled.trajectory.transitions)
        for seen, t in zip(shown, assembled.trajectory.transitions, strict=True):
            assert seen.response_id in (f"chatcmpl-{t.call_id}", f"resp_{t.call_id}")
            assert (seen.prompt_ids, seen.token_ids) == (t.prompt_ids.tolist(), t.response_ids.tolist())
            assert (seen.policy_version, seen.finish) == (t.policy_version, t.finish_reason)
            assert self.led.tokenizer.decode(seen.token_ids) == t.text
            assert seen.text == ("" if seen.calls else t.text)
            made = [(use.tool_call_id, use.name, json.loads(use.arguments)) for use in t.tools]
            assert made == [(call_id, name, json.loads(arguments)) for call_id, name, arguments in seen.calls]


@pytest.fixture
def stage(led: Led) -> Iterator[Stage]:
    with serving(led, led.tokenizer, Tap, tool_form="hermes") as server:
        yield Stage(server, led, server.app)
    led.scene = None
