"""The wire carries every field of our nouns, and the committed stubs are what protos/ generate."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_jax import types
from lightning_jax._proto.lightning.v1 import call_pb2, policy_pb2, reward_pb2, rollout_pb2, transition_pb2
from tests.ingest.processes import LONG_ONLY, ROOT


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


PROGRAM = """
import google.protobuf, importlib, pkgutil
import lightning_jax._proto.lightning.v1 as stubs
names = [module.name for module in pkgutil.iter_modules(stubs.__path__)]
for name in names:
    importlib.import_module(f"{stubs.__name__}.{name}")
from lightning_jax._proto.lightning.v1.call_pb2 import Call
assert Call.FromString(Call(call_id="c", prompt_ids=b"1234").SerializeToString()).prompt_ids == b"1234"
print(google.protobuf.__version__, len(names))
"""


@LONG_ONLY
@pytest.mark.parametrize("release", ["5.29", "6.33", "7.36"])
def test_stubs_work_with_every_protobuf_that_agents_pin(release: str, tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path)]
    if subprocess.run([*pip, f"protobuf~={release}.0"], capture_output=True).returncode:
        pytest.skip(f"protobuf {release} cannot be installed here: no package index")
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    version, modules = found.stdout.split()
    assert version.startswith(f"{release}.")
    assert int(modules) >= 10


def test_committed_stubs_are_what_the_generator_gives() -> None:
    try:
        found = importlib.metadata.version("grpcio-tools")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("grpcio-tools is not installed here; scripts/gen_protos.py --check runs where it is")
    if found != "1.71.2":
        pytest.skip(f"grpcio-tools is {found}; the stubs are made with 1.71.2")
    subprocess.run([sys.executable, ROOT / "scripts" / "gen_protos.py", "--check"], check=True)
