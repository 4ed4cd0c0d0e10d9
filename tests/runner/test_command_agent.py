"""What a program that is an agent finds in its environment, read by a real program."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from lightning_jax.runner.agents import CommandAgent

SHOW = shlex.join([sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"])
BASE_URL = "http://127.0.0.1:8000/rollout/train-1-a=b@c-0/attempt/train-1-a=b@c-0.1/v1"


def environment(**options: Any) -> Mapping[str, Any]:
    agent = CommandAgent(SHOW, **options)
    return agent({"question": "ü"}, base_url=BASE_URL, api_key="ljx-attempt", model="policy")


def test_the_keys_of_the_service_do_not_reach_the_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LJX_API_KEY", "LJX_VLLM_API_KEY", "LJX_OTHER_KEY"):
        monkeypatch.setenv(name, "the-service's-own")
    monkeypatch.setenv("PLAIN", "kept")
    monkeypatch.setenv("OPENAI_API_KEY", "somebody's")
    found = environment(otlp_endpoint="http://127.0.0.1:4317")
    assert "the-service's-own" not in found.values()
    assert found["PLAIN"] == "kept"
    assert found["OPENAI_API_KEY"] == "ljx-attempt"
    assert found["OPENAI_BASE_URL"] == BASE_URL


def test_opentelemetry_is_told_whose_spans_these_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=red")
    found = environment(otlp_endpoint="http://127.0.0.1:4317")
    expected = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer ljx-attempt",
        "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "100000",
        "OTEL_BSP_SCHEDULE_DELAY": "500",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "64",
    }
    assert {name: found[name] for name in expected} == expected
    from opentelemetry.sdk.resources import OTELResourceDetector

    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", found["OTEL_RESOURCE_ATTRIBUTES"])
    read = OTELResourceDetector().detect().attributes
    assert read["team"] == "red"
    assert read["ljx.rollout_id"] == "train-1-a=b@c-0"
    assert read["ljx.attempt_id"] == "train-1-a=b@c-0.1"
