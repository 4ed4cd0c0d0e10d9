"""Which dialect of semantic conventions a span speaks, by its instrumentation scope, and what it says in it.

One normaliser per dialect; an unknown scope is read leniently with all of them. Invariant: bytes that are no span give
None, all others facts, never an exception.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lightning_jax import types
from lightning_jax.assemble.attributes import Decoded, decode
from lightning_jax.assemble.dialects import gen_ai, http, open_inference, pydantic_ai, traceloop, union
from lightning_jax.assemble.facts import SpanFacts

__all__ = ["SpanFacts", "facts_of", "reader_of"]
Reader = Callable[[Decoded], SpanFacts]

# The longest prefix that matches a scope's name decides.
_READERS: dict[str, Reader] = {
    "openinference.": open_inference,
    "pydantic-ai": pydantic_ai,
    "autogen": gen_ai,
    "opentelemetry.util.genai": gen_ai,
    "opentelemetry.instrumentation.openai_v2": gen_ai,
    "opentelemetry.instrumentation.": traceloop,  # OpenLLMetry's are openai.v1, langchain, openai_agents...
    "traceloop": traceloop,
    **{
        f"opentelemetry.instrumentation.{client}": http
        for client in ("httpx", "requests", "aiohttp_client", "urllib", "urllib3")
    },
}


def reader_of(scope: str) -> Reader:
    """The normaliser of a scope."""
    known = [prefix for prefix in _READERS if scope.startswith(prefix)]
    return _READERS[max(known, key=len)] if known else _any_dialect


def facts_of(span: types.Span) -> SpanFacts | None:
    """Read a span by the conventions of its scope; None where its bytes are no span."""
    decoded = decode(span)
    if decoded is None:
        return None
    facts = reader_of(span.scope)(decoded)
    if not facts.error and (decoded.failed or any(decoded.exception)):
        said = ": ".join(filter(None, decoded.exception)) or decoded.message or "error"
        facts = replace(facts, error=said[:500])
    return facts


def _any_dialect(span: Decoded) -> SpanFacts:
    return union(traceloop(span), open_inference(span), http(span))
