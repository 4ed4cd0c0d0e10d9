"""A run's section `serve`: checked when read, part of the hash where it decides numbers, obeyed by the server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from lightning_jax.ingest.service import IngestServer
from lightning_jax.ingest.store import Store
from lightning_jax.presets import preset
from lightning_jax.run.parts import config_hash, read_parts
from lightning_jax.serve.config import ServeConfig
from lightning_jax.serve.keys import ApiKey
from tests.e2e.toy import ROOT, config


def with_serve(**changes: Any) -> dict[str, Any]:
    values = config()
    return {**values, "serve": {**values["serve"], **changes}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keepalive": 3}, "keepalive_s"),
        ({"tool_form": "xml"}, "hermes"),
        ({"max_concurrent": 0}, "at least 1"),
        ({"admin_key": "s3cret"}, "LJX_API_KEY"),
        ({"ssl_certfile": "x.pem"}, "server.tls_certificate"),
        ({"keys": {"bench": {"key": "s3cret", "scopes": ["infer"]}}}, "key_env"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_parts(with_serve(**changes))
    assert "s3cret" not in str(caught.value)


def test_the_preset_is_what_the_server_does_by_itself() -> None:
    given = ServeConfig.from_mapping({**preset("serve", "default"), "anonymous": True})
    assert given == ServeConfig()


def test_the_hash_covers_what_an_agent_is_answered_by() -> None:
    base = config_hash(config())
    assert config_hash({k: v for k, v in config().items() if k != "serve"}) == base  # runs from before the section
    assert config_hash(with_serve(keepalive_s=3.0, max_concurrent=5)) == base
    assert config_hash(with_serve(default_max_tokens=7)) != base
    assert config_hash(with_serve(tool_form="json")) != base


def test_a_key_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCH_KEY", "s3cret")
    key = ApiKey.from_mapping("bench", {"key_env": "BENCH_KEY", "scopes": ["infer"]})
    assert (key.secret, key.scopes) == ("s3cret", frozenset({"infer"}))
    with pytest.raises(ValueError, match="OTHER_KEY"):
        ApiKey.from_mapping("bench", {"key_env": "OTHER_KEY", "scopes": ["infer"]})


def test_any_key_lets_ingestion_listen_beyond_this_machine(tmp_path: Path) -> None:
    with Store(f"sqlite:///{tmp_path / 'store.sqlite'}") as store:
        IngestServer(store, host="0.0.0.0", keys={"k": ["ingest"]})
        with pytest.raises(ValueError, match="no key"):
            IngestServer(store, host="0.0.0.0")


def test_the_command_line_obeys_the_run_and_its_own_words(tmp_path: Path) -> None:
    """A run's section reaches the server, a word on the command line overrules it, and the weights are said."""
    values = with_serve(max_body_bytes=600, model_name="mine")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(values))
    words = ["--config", str(tmp_path), "--port", "0", "--grpc-port", "0", "--folder", str(tmp_path / "served")]
    command = [sys.executable, "-m", "lightning_jax.server", *words, "--serve", "max_body_bytes=900"]
    with subprocess.Popen(command, cwd=ROOT, env=dict(os.environ), stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stderr is not None
            said = []
            for line in server.stderr:
                said.append(line)
                if "serving" in line:
                    break
            root = said[-1].partition("serving ")[2].partition("/v1")[0]
            assert any("those that the run began with; it has no checkpoint" in line for line in said)
            assert httpx.get(f"{root}/v1/models").json()["data"][0]["id"] == "mine"
            sizes = [httpx.post(f"{root}/v1/completions", content=b" " * n).status_code for n in (700, 901)]
            assert sizes == [400, 413]
        finally:
            server.terminate()
