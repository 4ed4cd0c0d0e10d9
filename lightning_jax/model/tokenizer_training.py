"""A tokenizer for models trained from scratch: few tokens per prompt, lossless for any text.

Tiny models pay for every token twice (sequence length on the CPU, and one more thing to get right), so whole words and
identifiers are tokens where the vocabulary has room for them, and a message costs two template tokens. What is no word
of the texts falls to byte-level BPE. Invariant: the same texts give the same bytes, and `decode(encode(x)) == x` for
all x, seen or not, because every byte is a token.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from lightning_jax.model.tokenizer import Tokenizer

PAD, START_OF_TEXT, END_OF_TEXT, END = "<|pad|>", "<|im_start|>", "<|endoftext|>", "<|end|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>")
SPECIAL_TOKENS = (PAD, START_OF_TEXT, "<|im_end|>", END_OF_TEXT, END, *ROLES)
# one token each, but text: a model writes them and an answer's reader must see them
MARKUP_TOKENS = ("<tool_call>", "</tool_call>")

WORDS = r" ?[\p{L}_][\p{L}\p{M}\p{N}_]*| ?\p{N}| ?[^\s\p{L}\p{N}_]|\s+(?!\S)|\s+"
"""Words keep the space before them and identifiers are one word; digits and punctuation stand alone.

Digits, because a number is there to be copied: as whole tokens most numbers are too rare to be copied right (in the
Spider study every number seen less than a hundred times came out wrong).
"""

PIECES = 0.2
"""Share of the room that pieces of other words get where the texts have more words than fit."""

DEFAULT_CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}{%- for part in content -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- macro signatures() -%}
{%- for tool in tools -%}{{ '\\n' + (tool.function | tojson) }}{%- endfor -%}
{%- endmacro -%}
{%- if tools and messages[0].role not in ('system', 'developer') -%}
<|system|>{{ signatures() }}<|end|>
{%- endif -%}
{%- for message in messages -%}
{%- if message.role in ('system', 'developer') -%}
<|system|>{{ text(message.content) }}
{%- if tools and loop.first -%}{{ signatures() }}{%- endif -%}
{%- elif message.role == 'user' -%}
<|user|>{{ text(message.content) }}
{%- elif message.role == 'assistant' -%}
<|assistant|>{{ text(message.content) }}
{%- for call in message.tool_calls or [] -%}
{%- set arguments = call.function.arguments -%}
<tool_call>{"name": {{ call.function.name | tojson }}, "arguments": {{ '' -}}
{{ arguments if arguments is string else arguments | tojson }}}</tool_call>
{%- endfor -%}
{%- elif message.role == 'tool' -%}
<|tool|>{{ text(message.content) }}
{%- else -%}
{{ raise_exception('unknown role ' + message.role + ': system, developer, user, assistant or tool') }}
{%- endif -%}
<|end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}
"""
"""`<|role|>text<|end|>` per message, nothing between; the answer ends with <|end|>."""


def train_tokenizer(texts: Iterable[str], *, vocab_size: int, chat_template: str | None = None) -> Tokenizer:
    """Learn a vocabulary of whole words, and of byte-level BPE pieces for all other words.

    Args:
        texts: what the model will read and write, e.g. prompts and reference answers. Only counts of words matter,
            so their order is free.
        vocab_size: upper bound of the vocabulary, special tokens and the 256 bytes included; texts with few different
            words give a smaller one.
        chat_template: Jinja source; None takes DEFAULT_CHAT_TEMPLATE. It may use SPECIAL_TOKENS.

    Raises:
        ValueError: vocab_size has no room for the bytes and special tokens.
    """
    smallest = 256 + len(SPECIAL_TOKENS) + len(MARKUP_TOKENS)
    if vocab_size < smallest:
        raise ValueError(f"vocab_size={vocab_size} is too small: bytes and special tokens alone need {smallest}")
    backend = Backend(models.BPE(byte_fallback=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    texts = list(texts)
    room = vocab_size - smallest
    words = _words(texts, backend.pre_tokenizer)
    if len(words) > room:
        words = words[: room - int(room * PIECES)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(MARKUP_TOKENS) - len(words),
        min_frequency=2,  # a piece seen once is no piece
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer=trainer)
    backend = _with_words(backend, words)
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in MARKUP_TOKENS])
    return Tokenizer(
        backend,
        config={"eos_token": END, "pad_token": PAD},
        chat_templates={"default": DEFAULT_CHAT_TEMPLATE if chat_template is None else chat_template},
        eos_ids=[SPECIAL_TOKENS.index(END_OF_TEXT)],  # the trainer gives special tokens the first ids, in order
    )


def _words(texts: Iterable[str], pre_tokenizer: pre_tokenizers.PreTokenizer) -> list[str]:
    """Words of more than one byte, most frequent first, in the byte-level alphabet."""
    counts = Counter(piece for text in texts for piece, _ in pre_tokenizer.pre_tokenize_str(text))
    return sorted((word for word in counts if len(word) > 1), key=lambda word: (-counts[word], word))


def _with_words(backend: Backend, words: Iterable[str]) -> Backend:
    """`backend` with whole words in its vocabulary, which are looked up before any merge is tried."""
    content = json.loads(backend.to_str())
    vocabulary = content["model"]["vocab"]
    for word in words:
        vocabulary.setdefault(word, len(vocabulary))
    content["model"]["ignore_merges"] = True
    return Backend.from_str(json.dumps(content))
