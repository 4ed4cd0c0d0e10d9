"""An agent in plain `openai`: asks for the partner of two words, one call each."""

from __future__ import annotations

from typing import Any

import httpx2
import openai

HTTP = httpx2.Client(limits=httpx2.Limits(max_connections=256))  # one pool: building TLS contexts per task is slow


def solve(task_input: dict[str, Any], *, base_url: str, api_key: str, model: str) -> dict[str, Any]:
    """Return {"answers": [one per word]}."""
    client = openai.OpenAI(base_url=base_url, api_key=api_key, http_client=HTTP)
    answers = []
    for word in task_input["words"]:
        reply = client.chat.completions.create(
            model=model,
            messages=[{"role": "system", "content": "partner"}, {"role": "user", "content": word}],
        )
        answers.append((reply.choices[0].message.content or "").strip())
    return {"answers": answers}
