"""An agent as a program: knows its task and endpoint from the environment only."""

from __future__ import annotations

import json
import os

import openai

client = openai.OpenAI()
task = json.loads(os.environ["LJX_TASK"])
answers = []
for word in task["words"]:
    reply = client.chat.completions.create(
        model=os.environ["LJX_MODEL"],
        messages=[{"role": "system", "content": "partner"}, {"role": "user", "content": word}],
    )
    answers.append(reply.choices[0].message.content)
print("chatter that is no output")
print(json.dumps({"answers": answers}))
