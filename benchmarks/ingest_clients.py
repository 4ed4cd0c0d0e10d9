"""Load from a process of its own: N connections that send requests one after another, over gRPC or HTTP."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import grpc.aio

Send = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True)
class Load:
    """What one client process sends."""

    target: str  # host:port of gRPC, or an http:// URL
    method: str  # gRPC method; unused over HTTP
    clients: int
    requests: Iterable[bytes]
    headers: dict[str, str] = field(default_factory=dict)
    rate: float = 0.0  # requests a second over all clients; 0: as fast as they are answered


@dataclass(frozen=True)
class Sent:
    """What came of it."""

    seconds: float
    latencies: list[float]  # seconds, one a request

    def quantile(self, share: float) -> float:
        """In milliseconds."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def run(load: Load) -> Sent:
    """Send it all from a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_main, (load,))


def _main(load: Load) -> Sent:
    return asyncio.run(_run(load))


async def _run(load: Load) -> Sent:
    connect = _http if load.target.startswith("http") else _grpc
    senders = [await connect(load) for _ in range(load.clients)]
    queue = iter(load.requests)
    latencies: list[float] = []
    start = time.perf_counter()
    numbers = itertools.count()

    async def client(send: Send) -> None:
        for request in queue:
            begun = time.perf_counter()
            if load.rate:  # a request that is sent late because others were slow has waited since it was due
                begun = start + next(numbers) / load.rate
                await asyncio.sleep(max(0.0, begun - time.perf_counter()))
            await send(request)
            latencies.append(time.perf_counter() - begun)

    await asyncio.gather(*(client(send) for send in senders))
    return Sent(time.perf_counter() - start, latencies)


async def _grpc(load: Load) -> Send:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    channel = grpc.aio.insecure_channel(load.target, options=options)
    method = channel.unary_unary(load.method)
    metadata = tuple(load.headers.items())
    await channel.channel_ready()

    async def send(request: bytes) -> None:
        while True:
            try:
                await method(request, metadata=metadata, timeout=120)
                return
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.1)

    return send


async def _http(load: Load) -> Send:
    url = urlsplit(load.target)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    fixed = "".join(f"{name}: {value}\r\n" for name, value in load.headers.items())

    async def send(request: bytes) -> None:
        head = (
            f"POST {url.path} HTTP/1.1\r\nhost: {url.netloc}\r\ncontent-type: application/x-protobuf\r\n"
            f"content-length: {len(request)}\r\n{fixed}\r\n"
        )
        writer.write(head.encode() + request)
        await writer.drain()
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        status = int(answer.split(" ", 2)[1])
        length = next((int(x.split(":")[1]) for x in answer.split("\r\n") if x.startswith("content-length:")), 0)
        await reader.readexactly(length)
        if status != 200:
            raise RuntimeError(f"{load.target} answered {status}")

    return send
