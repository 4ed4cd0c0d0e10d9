"""The wire carries every field of our nouns, and the committed stubs are what protos/ generate."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import call_pb2, policy_pb2, reward_pb2, rollout_pb2, transition_pb2

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("noun", "message"),
    [
        (types.Rollout, rollout_pb2.Rollout),
        (types.SamplingDefaults, rollout_pb2.SamplingDefaults),
        (types.Attempt, rollout_pb2.Attempt),
        (types.Outcome, rollout_pb2.Outcome),
        (types.Call, call_pb2.Call),
        (types.SamplingParams, call_pb2.SamplingParams),
        (types.Reward, reward_pb2.Reward),
        (types.SealedAttempt, transition_pb2.SealedAttempt),
        (types.PolicyVersion, policy_pb2.PolicyVersion),
    ],
)
def test_a_message_has_the_fields_of_its_noun(noun: Any, message: Any) -> None:
    wire = {field.name.removesuffix("_json") for field in message.DESCRIPTOR.fields}
    assert wire == {field.name for field in dataclasses.fields(noun)}


def test_stubs_leave_the_name_lightning_to_others() -> None:
    program = "import sys, lightning_jax._proto.lightning.v1.transition_pb2_grpc; sys.exit('lightning' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_committed_stubs_are_what_the_generator_gives() -> None:
    try:
        found = importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("grpcio-tools is not installed here; scripts/gen_protos.py --check runs where it is")
    if found != "1.71.2":
        pytest.skip(f"grpcio-tools is {found}; the stubs are made with 1.71.2")
    subprocess.run([sys.executable, ROOT / "scripts" / "gen_protos.py", "--check"], check=True)
