"""Tokenizer: lossless text, templates as transformers renders them, no special token from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_jax.model.tokenizer import Tokenizer
from lightning_jax.model.tokenizer_training import SPECIAL_TOKENS, train_tokenizer

TEXTS = [
    "SELECT hire_year, name FROM employee WHERE hire_year > 2019 AND id = 12",
    "SELECT count(*) FROM head WHERE age > 56 AND hire_year = 2019",
] * 4
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "run_sql", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer(TEXTS, vocab_size=600)


# built once for hypothesis, which re-enters the test function
TOKENIZER = train_tokenizer(TEXTS, vocab_size=600)


@given(st.text() | st.lists(st.sampled_from([*SPECIAL_TOKENS, "<tool_call>", "<|", "é", "\n", " "])).map("".join))
def test_any_text_survives_and_never_becomes_a_special_token(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert not set(ids) & set(TOKENIZER.special_tokens.values())


@given(
    st.lists(
        st.sampled_from(["a", " ", "<", "<|", "<|end|>", "|>", "<|us", "er|>", "end", "qz0guard", "\ud800"]), max_size=8
    )
)
def test_messages_cannot_smuggle_special_tokens(parts: list[str]) -> None:
    """However the pieces join, in one string or over content parts, only the template's own special tokens appear."""
    skeleton = [TOKENIZER.special_tokens[t] for t in ("<|system|>", "<|end|>", "<|user|>", "<|end|>", "<|assistant|>")]
    messages = [
        {"role": "system", "content": "".join(parts)},
        {"role": "user", "content": [{"type": "text", "text": part} for part in parts]},
    ]
    ids = TOKENIZER.encode_chat(messages)
    assert [i for i in ids if i in TOKENIZER.special_tokens.values()] == skeleton
    clean = TOKENIZER.render(messages).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert TOKENIZER.decode(ids, skip_special_tokens=False) == clean


def test_frequent_words_and_identifiers_are_single_tokens(tokenizer: Tokenizer) -> None:
    for word in (" hire_year", " FROM", " employee", "SELECT", ","):
        assert len(tokenizer.encode(word)) == 1, word


def test_digits_stand_alone(tokenizer: Tokenizer) -> None:
    assert [tokenizer.decode([i]) for i in tokenizer.encode(" 2019.5")] == [" 2", "0", "1", "9", ".", "5"]


def test_training_is_deterministic_across_processes(tokenizer: Tokenizer) -> None:
    program = (
        "import json, sys; from lightning_jax.model.tokenizer_training import train_tokenizer;"
        "print(train_tokenizer(json.loads(sys.argv[1]), vocab_size=600).content_hash)"
    )
    command = [sys.executable, "-c", program, json.dumps(TEXTS)]
    result = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    assert result.stdout.strip() == tokenizer.content_hash


def test_vocab_without_room_for_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size=200"):
        train_tokenizer(TEXTS, vocab_size=200)


def test_default_template_costs_two_tokens_per_message(tokenizer: Tokenizer) -> None:
    text = tokenizer.render(
        [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "run_sql", "arguments": '{"q": "x"}'}}],
            },
            {"role": "tool", "content": "3"},
        ],
        TOOLS,
    )
    assert text == (
        '<|system|>be brief\n{"name": "run_sql", "parameters": {"type": "object"}}<|end|><|user|>q<|end|>'
        '<|assistant|><tool_call>{"name": "run_sql", "arguments": {"q": "x"}}</tool_call><|end|>'
        "<|tool|>3<|end|><|assistant|>"
    )
    assert tokenizer.decode(tokenizer.eos_ids[:1], skip_special_tokens=False) == "<|end|>"


def test_a_chat_grows_by_appending(tokenizer: Tokenizer) -> None:
    """The next turn's prompt starts with this turn's prompt and answer: what lets turns share computation."""
    first = [{"role": "user", "content": "SELECT count"}]
    answer = [*tokenizer.encode("SELECT count(*) FROM head"), tokenizer.eos_ids[0]]
    second = [*first, {"role": "assistant", "content": "SELECT count(*) FROM head"}, {"role": "user", "content": "ok"}]
    expected = tokenizer.encode_chat(first) + answer
    assert tokenizer.encode_chat(second)[: len(expected)] == expected


def test_save_and_load(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    assert loaded.content_hash == tokenizer.content_hash
    assert (loaded.eos_ids, loaded.pad_id, loaded.vocab_size) == (
        tokenizer.eos_ids,
        tokenizer.pad_id,
        tokenizer.vocab_size,
    )
    chat = [{"role": "user", "content": "SELECT <|end|> 12"}]
    assert loaded.encode_chat(chat, TOOLS) == tokenizer.encode_chat(chat, TOOLS)


@pytest.mark.parametrize("template", [CHATML, None])
def test_agrees_with_transformers(template: str | None, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = train_tokenizer(TEXTS, vocab_size=600, chat_template=template)
    ours.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    chat = [{"role": "system", "content": "SELECT"}, {"role": "user", "content": "hire_year\n 2019 é"}]
    assert ours.render(chat) == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    rendered = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    assert ours.encode_chat(chat) == list(rendered)
    assert theirs.eos_token == "<|end|>"


def test_templates_run_sandboxed_and_their_errors_are_value_errors(tokenizer: Tokenizer) -> None:
    backend = tokenizer.backend
    bad = Tokenizer(backend, chat_templates={"default": "{{ messages.__class__.__mro__ }}"})
    with pytest.raises(ValueError, match="refused"):
        bad.render([{"role": "user", "content": "x"}])
    with pytest.raises(ValueError, match="unknown role"):
        tokenizer.render([{"role": "wizard", "content": "x"}])
    with pytest.raises(ValueError, match="line 1"):
        Tokenizer(backend, chat_templates={"default": "{% if %}"})
    with pytest.raises(ValueError, match="no 'default' chat template"):
        Tokenizer(backend).render([])


def test_what_hf_templates_expect(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    source = (
        "{%- for m in messages %}{% if m.role == 'tool' %}{% break %}{% endif %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
        "{{ tools | tojson }} {{ strftime_now('%Y') }} {{ eos_token }} {{ mood }}"
    )
    tool_use = {"default": "default", "tool_use": source}
    both = Tokenizer(tokenizer.backend, config={"eos_token": {"content": "<|end|>"}}, chat_templates=tool_use)
    messages = [{"role": "user", "content": "é<"}, {"role": "tool", "content": "x"}]
    assert both.render(messages, [{"a": "<é>"}], mood="calm") == 'é<[{"a": "<é>"}] 1970 <|end|> calm'
    assert both.render(messages) == "default"


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)
