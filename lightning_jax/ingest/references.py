"""What the policy server leaves in whatever an agent's spans show: an attempt's URL, and ids of answers."""

from __future__ import annotations

import re

ROLLOUT_ATTRIBUTE = "ljx.rollout_id"  # of an OpenTelemetry resource
ATTEMPT_ATTRIBUTE = "ljx.attempt_id"
RESPONSE_PREFIXES = ("chatcmpl-", "resp_", "cmpl-")  # chat completions, responses, completions
RESPONSE_ID = re.compile(rf"\b(?:{'|'.join(RESPONSE_PREFIXES)})([A-Za-z0-9_.:-]+)")
TOOL_CALL_ID = re.compile(r"\bcall_([A-Za-z0-9_.:-]+)_\d+")
_PATH = re.compile(r"/rollout/([^/?#]+)/attempt/([^/?#]+)/")


def attempt_in(url: str) -> tuple[str, str] | None:
    """(rollout id, attempt id) in a URL below an attempt's base URL; None in any other."""
    match = _PATH.search(url if url.endswith("/") else url + "/")
    return (match[1], match[2]) if match else None
