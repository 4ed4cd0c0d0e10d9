"""The clients of the HTTP measurement, in a process of their own: kept connections, one request each at a time.

Reads {"port", "requests", "connections", "key", "stream", "rate"} from stdin, says "ready", waits for a line, tells
latencies. rate: requests per second of all connections; 0: each asks again as soon as it has its answer. With a
rate, a latency counts from when the request was due, so that a stall is felt by all that it held up.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import numpy as np

MESSAGES = [
    {"role": "system", "content": "You write one SQLite query that answers the question. " * 8},
    {"role": "user", "content": "Schema: singer(id, name, country, age), concert(id, name, year). " * 6},
    {"role": "assistant", "content": "SELECT count(*) FROM singer WHERE age > 30"},
    {"role": "user", "content": "The query returned 3 rows. Check it and write a better one. " * 4},
]


async def connection(options: dict[str, Any], number: int, count: int, latencies: list[float]) -> None:
    """`count` requests, one after the other."""
    interval = options["connections"] / options["rate"] if options["rate"] else 0.0
    reader, writer = await asyncio.open_connection("127.0.0.1", options["port"])
    body = json.dumps({"model": "policy", "messages": MESSAGES, "stream": options["stream"]}).encode()
    request = (
        b"POST /rollout/ro/attempt/at/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        + f"authorization: Bearer {options['key']}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    start = time.perf_counter() + interval * number / options["connections"]
    for request_number in range(count):
        began = time.perf_counter()
        if interval:
            due = start + interval * request_number
            await asyncio.sleep(max(0.0, due - began))
            began = due
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"the server answered {head[:60]!r}")
        if b"chunked" in head.lower():
            await reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            length = head.lower().split(b"content-length:")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
        latencies.append(time.perf_counter() - began)
    writer.close()


async def main() -> None:
    """Load the server once."""
    options = json.loads(sys.stdin.readline())
    print("ready", flush=True)
    sys.stdin.readline()
    latencies: list[float] = []
    each = -(-options["requests"] // options["connections"])
    began = time.perf_counter()
    await asyncio.gather(*(connection(options, i, each, latencies) for i in range(options["connections"])))
    seconds = time.perf_counter() - began
    p50, p99 = (1e3 * float(np.quantile(latencies, q)) for q in (0.5, 0.99))
    print(json.dumps({"requests_per_s": len(latencies) / seconds, "p50_ms": p50, "p99_ms": p99}), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
