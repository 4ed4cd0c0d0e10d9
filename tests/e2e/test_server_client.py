"""LightningServer and LightningClient over real sockets: training by clients, frameworks, traces, failures."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pandas as pd
import pytest

from experiments.toy.study import load
from lightning_jax.client import LightningClient
from lightning_jax.ingest.errors import AttemptEnded
from lightning_jax.publish.version import policy_version, safetensors_bytes
from lightning_jax.run.policy import build_policy
from lightning_jax.server import LightningServer
from lightning_jax.types import PolicyVersion, SealedAttempt, Task
from tests.e2e import agents
from tests.e2e.toy import training_lines

KEY = "sesame"
MESSAGES = [{"role": "system", "content": "partner"}, {"role": "user", "content": "salt"}]
MODEL: dict[str, Any] = {
    "name": "toy",
    "tokenizer": {"vocab_size": 512},
    "config": {"num_layers": 1, "embed_dim": 64, "mlp_dim": 128, "num_heads": 2, "num_kv_heads": 1, "head_dim": 32},
}
SMALL: dict[str, Any] = {
    "base_model": MODEL,
    "engine": "toy",
    "batch": {"layout": "trie", "buckets": [64], "micro_batch_tokens": 512},
    "corpus": load({}).corpus,
    "quiet": True,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightningServer]:
    """One that only serves, with a key."""
    with LightningServer(**SMALL, admin_key=KEY, folder=tmp_path_factory.mktemp("server")).start(port=0) as running:
        yield running


@pytest.fixture
def client(server: LightningServer) -> Iterator[LightningClient]:
    with LightningClient(server.url, KEY) as connected:
        yield connected


def sealed(client: LightningClient, rollout_id: str) -> SealedAttempt:
    for attempt in client.ingest.sealed("test", 0, idle_s=10):
        if attempt.rollout.rollout_id == rollout_id:
            return attempt
    raise AssertionError(f"{rollout_id} was not sealed")


def test_a_rollout_keeps_its_calls_and_rewards(client: LightningClient) -> None:
    with client.rollout({"question": "salt"}, temperature=0.0) as rollout:
        first = rollout.openai().chat.completions.create(model="any", messages=MESSAGES, max_tokens=3)
        rollout.langchain(max_tokens=2).invoke("salt")
        rollout.reward(0.5, brevity=0.25)
        rollout.reward(1.0)  # of one name, the last holds
        rollout.output(answer=first.choices[0].message.content)
    attempt = sealed(client, rollout.rollout_id)
    assert attempt.outcome.status == "succeeded"
    assert attempt.outcome.output == {"answer": first.choices[0].message.content}
    assert attempt.calls[0].call_id == first.id.removeprefix("chatcmpl-")
    assert [len(call.response_ids) for call in attempt.calls] == [3, 2]
    assert [(reward.value, dict(reward.components)) for reward in attempt.rewards] == [
        (0.5, {"brevity": 0.25}),
        (1.0, {}),
    ]
    with pytest.raises(AttemptEnded):
        rollout.reward(1.0)
    with pytest.raises(openai.APIStatusError, match="has ended"):
        rollout.openai(max_retries=0).chat.completions.create(model="any", messages=MESSAGES)


def test_an_exception_in_a_rollout_is_its_outcome(client: LightningClient) -> None:
    with pytest.raises(ZeroDivisionError), client.rollout({"question": "salt"}) as rollout:
        1 / 0  # noqa: B018
    outcome = sealed(client, rollout.rollout_id).outcome
    assert (outcome.status, outcome.reason) == ("crashed", "ZeroDivisionError: division by zero")


def test_equal_inputs_are_one_task_and_others_leave_own_rollouts_alone(client: LightningClient) -> None:
    with client.rollout({"question": "a"}) as one, client.rollout({"question": "a"}, sample=1) as two:
        assert one.attempt.rollout.task_id == two.attempt.rollout.task_id
        assert one.attempt.rollout.seed != two.attempt.rollout.seed
    waiting = client.rollout({"question": "b"})._rollout
    assert waiting is not None
    client.ingest.enqueue([waiting])
    with pytest.raises(TimeoutError, match="no rollout was to be had"), client.rollout(wait_s=0.1):
        pass


def test_calls_outside_of_rollouts_and_keys(server: LightningServer, client: LightningClient) -> None:
    answer = client.openai().chat.completions.create(model="policy", messages=MESSAGES, max_tokens=2)
    assert answer.usage is not None
    assert client.langchain(max_tokens=2).invoke("salt").usage_metadata["output_tokens"] <= 2
    with pytest.raises(openai.AuthenticationError):
        LightningClient(server.url).openai(max_retries=0).chat.completions.create(model="policy", messages=MESSAGES)
    with LightningClient(server.url) as stranger, pytest.raises(PermissionError), stranger.rollout({"question": "a"}):
        pass
    with pytest.raises(ConnectionError, match="no LightningServer answers"):
        LightningClient("http://127.0.0.1:9").rollout({"question": "a"}).__enter__()


def test_published_weights_must_be_those_announced(server: LightningServer, client: LightningClient) -> None:
    params = build_policy(MODEL, SMALL["corpus"], seed=1).params
    content = safetensors_bytes(params)
    with pytest.raises(ValueError, match="announced with parameter digest"):
        client.ingest.publish_policy(PolicyVersion(7, "0" * 32, 7), content)
    assert client.ingest.publish_policy(policy_version(params, 7, 7), content)
    with urllib.request.urlopen(f"{server.url}/healthcheck") as response:
        assert json.load(response)["policy_version"] == 7
    other = build_policy({**MODEL, "config": {**MODEL["config"], "mlp_dim": 64}}, SMALL["corpus"], seed=1).params
    with pytest.raises(ValueError, match="another architecture"):
        client.ingest.publish_policy(policy_version(other, 8, 8), safetensors_bytes(other))


def test_traces_arrive_with_their_rollout(client: LightningClient) -> None:
    with client.rollout({"question": "salt"}) as rollout:
        provider = client.trace("some agent", api_key=rollout.api_key)
        with provider.get_tracer("test").start_as_current_span("plan") as span:
            answer = rollout.openai().chat.completions.create(model="any", messages=MESSAGES, max_tokens=2)
            span.set_attribute("gen_ai.response.id", answer.id)
            for number in range(200):
                span.set_attribute(f"filler.{number}", number)  # more than OpenTelemetry's own limit keeps
        provider.shutdown()
    spans = sealed(client, rollout.rollout_id).spans
    (found,) = [span for span in spans if span.scope == "test"]  # the server shares the process, and may be traced too
    assert found.name == "plan"
    assert answer.id.encode() in found.body


def test_clients_train_a_server_with_their_own_rewards(tmp_path: Path) -> None:
    tasks = [{"words": ["salt"]}, {"words": ["king"]}]
    server = LightningServer(
        **SMALL, tasks=tasks, folder=tmp_path, train={"steps": 3, "samples_per_task": 4, "max_tokens": 4}
    )
    count = 0
    with server.start(port=0), LightningClient(server.url) as client:
        while server.summary is None and count < 100:
            try:
                with client.rollout(wait_s=0.2) as rollout:
                    (word,) = rollout.input["words"]
                    text = rollout.openai().chat.completions.create(
                        model="policy", messages=[{"role": "user", "content": word}]
                    )
                    rollout.reward(float(len(text.choices[0].message.content or "") % 2), style=count / 10)
                    count += 1
            except TimeoutError:
                continue
        summary = server.wait(30)
    assert count == 3 * 2 * 4
    assert (summary["status"], summary["steps"]) == ("finished", 3)
    lines = training_lines(tmp_path)
    rows = pd.concat([pd.read_parquet(part) for part in sorted((tmp_path / "transitions").iterdir())])
    assert [line["reward/mean"] for line in lines] == rows.groupby("step")["reward_total"].mean().tolist()
    assert max(line["learner/gap_max_nat"] for line in lines) < 1e-3


def test_agents_that_crash_hang_or_return_nonsense_are_data(tmp_path: Path) -> None:
    kinds = ("works", "crashes", "hangs", "nonsense")
    tasks = [Task(kind, {"words": ["salt"], "kind": kind}) for kind in kinds]
    train = {"steps": 1, "samples_per_task": 2, "max_tokens": 4, "rollout_timeout_s": 2.0}
    server = LightningServer(
        **SMALL, tasks=tasks, folder=tmp_path, train=train, agent=agents.unreliable, reward=_length
    )
    with server.start(port=0):
        summary = server.wait(60)
    agents.RELEASE.set()
    assert summary["status"] == "finished"
    rows = pd.concat([pd.read_parquet(part) for part in (tmp_path / "transitions").iterdir()])
    statuses = rows.groupby("task_id")["status"].unique().map(list).to_dict()
    assert statuses == {"works": ["succeeded"], "crashes": ["crashed"], "hangs": ["timeout"], "nonsense": ["crashed"]}
    assert training_lines(tmp_path)[0]["rollout/failed_fraction"] == 0.75
    assert set(rows.loc[rows["status"] != "succeeded", "reward_total"]) == {0.0}


def test_a_program_as_agent(tmp_path: Path) -> None:
    program = Path(__file__).with_name("program.py")
    runner = {"kind": "subprocess", "concurrency": 2, "command": f"{sys.executable} {program}"}
    train = {"steps": 1, "samples_per_task": 2, "max_tokens": 4}
    server = LightningServer(
        **SMALL, tasks=[{"words": ["salt", "king"]}], folder=tmp_path, train=train, runner=runner, reward=_length
    )
    with server.start(port=0):
        server.wait(60)
    (line,) = training_lines(tmp_path)
    assert line["rollout/calls_mean"] == 2.0
    assert line["rollout/failed_fraction"] == 0.0
    assert line["reward/mean"] > 0


def test_stop_ends_training_with_a_checkpoint_and_start_resumes(tmp_path: Path) -> None:
    train = {"steps": 500, "samples_per_task": 2, "max_tokens": 2, "checkpoint_every": 100}
    settings = {**SMALL, "tasks": [{"words": ["salt"]}], "folder": tmp_path, "train": train, "reward": _length}
    server = LightningServer(**settings, agent=agents.solve).start(port=0)
    while len(training_lines(tmp_path)) < 2:
        time.sleep(0.02)
    server.stop()
    assert server.summary is not None
    done = server.summary["steps"]
    assert server.summary["status"] == "stopped"
    assert 2 <= done < 500
    assert (tmp_path / "checkpoints" / f"step-{done:08d}").is_dir()
    with LightningServer(**settings, agent=agents.solve).start(port=0, resume=True) as again:
        while len(training_lines(tmp_path)) <= done:
            time.sleep(0.02)
        assert again.summary is None
    assert [line["step"] for line in training_lines(tmp_path)][: done + 1] == list(range(1, done + 2))


def test_settings_that_cannot_work_are_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'grpo'"):
        LightningServer(**SMALL, algorithm="grpoo")
    with pytest.raises(ValueError, match=r"no HF directory, no \.gguf file and no preset"):
        LightningServer("no/such/model")
    with pytest.raises(ValueError, match="tasks is empty"):
        LightningServer(**SMALL, tasks=[])
    with pytest.raises(ValueError, match="did you mean 'steps'"):
        LightningServer(**SMALL, train={"setps": 1})
    with pytest.raises(ValueError, match="there is no API key"):
        LightningServer(**SMALL, host="0.0.0.0", folder=tmp_path).start(port=0)
    with pytest.raises(ValueError, match="call start"):
        _ = LightningServer(**SMALL).url


def _length(task: Task, trajectory: Any) -> float:
    return sum(len(answer) for answer in trajectory.outcome.output.get("answers", [])) / 100
