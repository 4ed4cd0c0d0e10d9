"""Text ↔ token ids, and messages → prompt ids, from a HF tokenizer directory.

Invariant: only the chat template may write special tokens. Text that comes from outside (messages, tool definitions,
tool results) never turns into one, whatever it spells: `encode` reads every special token's text as ordinary
characters, and `encode_chat` keeps the spellings found in messages apart from those that the template wrote. For
messages without such spellings the ids are exactly those of `tokenizers` on the rendered text, as in transformers.

Host code on purpose: no jax here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import tokenizers

from lightning_jax.model.chat_template import compile_template, read_templates

Message = Mapping[str, Any]  # OpenAI chat message: role, content, tool_calls...
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def _without_surrogates(text: str) -> str:
    """Lone surrogates (JSON can carry them) are no Unicode text: U+FFFD in their place."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _content(token: Any) -> str | None:
    """Text of a special token, which configs give as a string or as {"content": ...}."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


class Tokenizer:
    """A tokenizer with its chat template. Immutable after construction; safe to share between threads.

    Args:
        backend: the text ↔ ids model, as serialised in tokenizer.json.
        config: the fields of tokenizer_config.json (special tokens by role, and whatever else is to be kept).
        chat_templates: Jinja source by name; "default" is used, "tool_use" instead of it where tools are given.
        eos_ids: ids that end a response; () derives them from config's eos_token.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        config: Mapping[str, Any] | None = None,
        chat_templates: Mapping[str, str] | None = None,
        eos_ids: Sequence[int] = (),
    ) -> None:
        self._parsing = backend  # reads special tokens in text: only for what a template wrote
        self._parsing.no_padding()
        self._parsing.no_truncation()
        serialised = self._parsing.to_str()
        self._plain = tokenizers.Tokenizer.from_str(serialised)
        self._plain.encode_special_tokens = True  # i.e. their spelling is ordinary text
        self._config = dict(config or {})
        self._templates = dict(chat_templates or {})
        self._compiled = {name: compile_template(source) for name, source in self._templates.items()}
        self._special = {t.content: i for i, t in backend.get_added_tokens_decoder().items() if t.special}
        self._added = {t.content: t for t in backend.get_added_tokens_decoder().values() if t.special}
        self._names = {n: c for n in SPECIAL_NAMES if (c := _content(self._config.get(n))) is not None}
        self._split = _alternatives(self._special)
        self._smuggled = _smuggling_pattern(self._special)
        self.eos_ids: tuple[int, ...] = self._resolve_eos(eos_ids)
        digest = hashlib.blake2b(serialised.encode(), digest_size=16)
        digest.update(json.dumps([self._templates, self._names, list(self.eos_ids)], sort_keys=True).encode())
        self.content_hash: str = digest.hexdigest()

    @classmethod
    def load(cls, directory: str | Path) -> Tokenizer:
        """Read a HF tokenizer directory.

        Needs tokenizer.json; uses tokenizer_config.json, special_tokens_map.json, chat_template.jinja and
        generation_config.json (its eos_token_id) where present. ValueError on a missing or unreadable file.
        """
        folder = Path(directory)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"no tokenizer.json in {folder}: save a fast tokenizer there (save_pretrained writes it)")
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises bare Exception
            raise ValueError(
                f"{path} is no tokenizer that `tokenizers` {tokenizers.__version__} reads: {error}"
            ) from error
        config = {**_read_json(folder / "special_tokens_map.json"), **_read_json(folder / "tokenizer_config.json")}
        templates = read_templates(config.pop("chat_template", None), folder / "chat_template.jinja")
        eos = _read_json(folder / "generation_config.json").get("eos_token_id")
        eos_ids = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
        return cls(backend, config=config, chat_templates=templates, eos_ids=eos_ids)

    def save(self, directory: str | Path) -> None:
        """Write a directory that `load` and transformers' AutoTokenizer read back to the same content_hash."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(self._parsing.to_str(pretty=True), encoding="utf-8")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 10**9, **self._config}
        default_only = set(self._templates) <= {"default"}
        if self._templates and not default_only:
            config["chat_template"] = [{"name": n, "template": t} for n, t in self._templates.items()]
        elif self._templates:
            # newline="" keeps the template's bytes on every platform
            with (folder / "chat_template.jinja").open("w", encoding="utf-8", newline="") as file:
                file.write(self._templates["default"])
        _write_json(folder / "tokenizer_config.json", config)
        generation = _read_json(folder / "generation_config.json")
        _write_json(folder / "generation_config.json", {**generation, "eos_token_id": list(self.eos_ids)})

    @property
    def vocab_size(self) -> int:
        """Number of ids an embedding needs: the highest id plus one, added tokens included."""
        return max(self._parsing.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def pad_id(self) -> int:
        """Id to fill unused places with: pad_token, else the first end token, else 0. Never seen by the model."""
        name = self._names.get("pad_token")
        found = self._parsing.token_to_id(name) if name is not None else None
        return found if found is not None else (self.eos_ids[0] if self.eos_ids else 0)

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Text → id of every token that only a template may write."""
        return dict(self._special)

    @property
    def chat_template(self) -> str | None:
        """Source of the default chat template; None where the directory has none."""
        return self._templates.get("default")

    @property
    def backend(self) -> tokenizers.Tokenizer:
        """The underlying `tokenizers` object (it parses special tokens: not for text from outside)."""
        return self._parsing

    def token_to_id(self, token: str) -> int | None:
        """Id of a token's exact vocabulary text, special tokens included; None where unknown."""
        found: int | None = self._parsing.token_to_id(token)
        return found

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text: nothing added, no special token ever in the result."""
        return self._encode(self._plain, text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of ids. Incomplete UTF-8 at either end shows as U+FFFD; ids beyond the vocabulary are skipped."""
        text: str = self._parsing.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)
        return text

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The chat template's text for OpenAI-style messages and tools; `variables` reach the template.

        ValueError where there is no template, or where the template refuses the messages (raise_exception).
        """
        name = "tool_use" if tools and "tool_use" in self._compiled else "default"
        if name not in self._compiled:
            raise ValueError(
                f"the tokenizer has no {name!r} chat template (it has {sorted(self._compiled)}): "
                "put chat_template.jinja in its directory, or pick an instruct model"
            )
        values = {**self._names, **variables, "add_generation_prompt": add_generation_prompt}
        try:
            return self._compiled[name].render(messages=messages, tools=list(tools) if tools else None, **values)
        except (jinja2.TemplateError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"the chat template refused {len(messages)} messages: {error}") from error

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> list[int]:
        """Prompt ids of a chat: as `render`, then encoded with the template's special tokens and no others."""
        marker = self._marker(messages, tools)
        if marker is None:
            return self._encode(self._parsing, self.render(messages, tools, add_generation_prompt, **variables))
        hidden: list[str] = []

        def hide(match: re.Match[str]) -> str:
            hidden.append(match.group())
            return f"{marker}{len(hidden) - 1};"

        assert self._smuggled is not None
        guard = self._smuggled
        safe_messages = _map_strings(messages, lambda text: guard.sub(hide, text))
        safe_tools = _map_strings(tools, lambda text: guard.sub(hide, text))
        text = self.render(safe_messages, safe_tools, add_generation_prompt, **variables)
        return self._encode_guarded(text, re.compile(re.escape(marker) + r"(\d+);"), hidden)

    def _encode(self, backend: tokenizers.Tokenizer, text: str) -> list[int]:
        try:
            encoding = backend.encode(text, add_special_tokens=False)
        except TypeError:  # what the package says of lone surrogates
            encoding = backend.encode(_without_surrogates(text), add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def _marker(self, messages: Any, tools: Any) -> str | None:
        """A string that occurs nowhere in the input, to stand for smuggled spellings; None where there are none."""
        strings: list[str] = []
        _map_strings([messages, tools], lambda text: strings.append(text) or text)  # type: ignore[func-returns-value]
        if self._smuggled is None or not any(self._smuggled.search(text) for text in strings):
            return None
        number = 0
        # plain ASCII letters and digits: survives JSON escaping, strip() and the like inside templates
        while any(f"qz{number}guard" in text for text in strings):
            number += 1
        return f"qz{number}guard"

    def _encode_guarded(self, text: str, marked: re.Pattern[str], hidden: Sequence[str]) -> list[int]:
        """Ids of a rendered text with placeholders: special tokens by id, everything between them as plain text."""
        assert self._split is not None
        ids: list[int] = []
        pieces = self._split.split(text)  # plain, special, plain, special, ... plain
        for place, piece in enumerate(pieces):
            if place % 2:
                ids.append(self._special[piece])
                continue
            if place and self._added[pieces[place - 1]].rstrip:
                piece = piece.lstrip()
            if place + 1 < len(pieces) and self._added[pieces[place + 1]].lstrip:
                piece = piece.rstrip()
            if piece:
                ids.extend(self.encode(marked.sub(lambda match: hidden[int(match.group(1))], piece)))
        return ids

    def _resolve_eos(self, given: Sequence[int]) -> tuple[int, ...]:
        ids = [int(i) for i in given]
        name = self._names.get("eos_token")
        if name is not None:
            found = self._parsing.token_to_id(name)
            if found is None:
                raise ValueError(
                    f"eos_token {name!r} is not in the vocabulary: tokenizer_config.json and tokenizer.json differ"
                )
            ids.insert(0, found)
        return tuple(dict.fromkeys(ids))


def _alternatives(tokens: Mapping[str, int]) -> re.Pattern[str] | None:
    """Pattern with one group that matches any token, the longest first; None for no tokens."""
    ordered = sorted(tokens, key=lambda token: (-len(token), token))
    return re.compile("(" + "|".join(map(re.escape, ordered)) + ")") if ordered else None


def _smuggling_pattern(tokens: Mapping[str, int]) -> re.Pattern[str] | None:
    """Matches what could become a special token: a whole spelling, or a string's end that begins one.

    Beginnings matter because a template may join two strings of the input (content parts) without anything between.
    """
    if not tokens:
        return None
    whole = sorted(tokens, key=lambda token: (-len(token), token))
    halves = sorted({token[:cut] for token in tokens for cut in range(1, len(token))}, key=lambda h: (-len(h), h))
    pattern = "|".join(map(re.escape, whole))
    if halves:
        pattern += "|(?:" + "|".join(map(re.escape, halves)) + r")\Z"
    return re.compile(pattern)


def _map_strings(value: Any, change: Callable[[str], str]) -> Any:
    """Copy of JSON-like data with every string value and key changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(k) if isinstance(k, str) else k: _map_strings(v, change) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_map_strings(item, change) for item in value]
    return value


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, not an object")
    return value


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
