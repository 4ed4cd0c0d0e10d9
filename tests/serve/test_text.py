"""Streaming text: pieces join to the whole, and a stop string cuts at the same token however the tokens come."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_jax.serve.text import ResponseText


def decode(ids) -> str:
    return bytes(ids).decode("utf-8", "replace")


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(alphabet="abé€𝄞 ", max_size=20),
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=3), max_size=3),
    cuts=st.lists(st.integers(1, 5), max_size=40),
)
def test_pieces_join_and_stop_alike(text, stops, cuts):
    ids = list(text.encode())
    whole = ResponseText(decode, stops)
    whole.feed(ids, [0.0] * len(ids))
    pieces, at, streamed = "", 0, ResponseText(decode, stops)
    for size in [*cuts, len(ids)]:
        streamed.feed(ids[at : at + size], [0.0] * len(ids[at : at + size]))
        at += size
        new = streamed.take()
        assert "\ufffd" not in new
        pieces += new
    pieces += streamed.take(final=True)
    assert pieces == whole.text() == streamed.text()
    assert whole.ids == streamed.ids
    assert whole.stopped == streamed.stopped == any(s in text for s in stops)
    if whole.stopped:
        first = min(text.find(s) for s in stops if s in decode(whole.ids.tolist()))
        assert whole.text() == text[:first]
        assert not any(s in decode(whole.ids[:-1].tolist()) for s in stops)


def test_unfinished_bytes_come_out_at_the_end():
    response = ResponseText(decode)
    response.feed([0xE2, 0x82], [0.0, 0.0])
    assert response.take() == ""
    assert response.take(final=True) == decode([0xE2, 0x82])
