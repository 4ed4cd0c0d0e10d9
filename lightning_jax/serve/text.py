"""From sampled ids to text, while they come: no half characters, no half stop strings, no difference to decoding once.

Invariant: what `take` has given out, joined, is a prefix of the final text; and where a stop string ends a response,
the ids kept are those up to the token that completed it, whatever the size of the chunks they came in.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

UNFINISHED = "�"  # how a decoder shows bytes that are no character yet


class ResponseText:
    """The growing text of one response."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._given = 0  # characters handed out
        self._text = ""
        # Arrays: answers are kept for a while, and the garbage collector would look at every number of a list.
        self.ids: array[int] = array("q")
        self.logps: array[float] = array("d")
        self.stopped = False  # a stop string was found; nothing more is taken in

    @property
    def has_stops(self) -> bool:
        """Whether a stop string can end it."""
        return bool(self._stops)

    def feed(self, ids: Sequence[int], logps: Sequence[float]) -> None:
        """Take in tokens, one by one where a stop string may cut them."""
        if not self._stops:
            self.ids.extend(ids)
            self.logps.extend(logps)
            return
        for token, logp in zip(ids, logps, strict=True):
            if self.stopped:
                return
            self.ids.append(token)
            self.logps.append(logp)
            self._text = self._decode(self.ids.tolist())
            found = [at for stop in self._stops if (at := self._text.find(stop)) >= 0]
            if found:
                self._text = self._text[: min(found)]
                self.stopped = True

    def take(self, *, final: bool = False) -> str:
        """New text that later tokens cannot change; final: all the rest."""
        text = self.text()
        if not final and not self.stopped:
            text = text.rstrip(UNFINISHED)
            text = text[: len(text) - self._held(text)]
        new = text[self._given :]
        self._given = max(self._given, len(text))
        return new

    def text(self) -> str:
        """The text so far, cut before a stop string."""
        if not self._stops:
            self._text = self._decode(self.ids.tolist())
        return self._text

    def _held(self, text: str) -> int:
        """Length of the longest end of text that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self._stops), default=0)
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0
