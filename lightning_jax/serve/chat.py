"""The chat endpoint: request → prompt ids and sampling parameters → an answer → the record of every call in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, cast

import numpy as np

from lightning_jax.serve.answer import Answer, Choice
from lightning_jax.serve.calls import CallNumbers, agent_key, call_seed, free_seed, new_call_id
from lightning_jax.serve.chat_request import ChatRequest
from lightning_jax.serve.config import ServeConfig
from lightning_jax.serve.errors import ApiError, busy, invalid
from lightning_jax.serve.generation import EngineStopped, GenerationRequest, GenerationResult, PromptTooLong, QueueFull
from lightning_jax.serve.grammar import Constrainer, TokenGrammar, schema_rule
from lightning_jax.serve.identity import CallSink, Grant
from lightning_jax.serve.marks import DeliveryMarks
from lightning_jax.serve.policy_engine import PolicyEngine
from lightning_jax.serve.recall import refill
from lightning_jax.serve.text import ResponseText
from lightning_jax.serve.tools import ToolForm, ToolReader, for_template, forced_call, form_of, issued
from lightning_jax.tool_verdicts import load_validators
from lightning_jax.types import Call, CallMark, FinishReason, IntArray, SamplingParams


class ChatTokenizer(Protocol):
    """What serve needs of a tokenizer."""

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> list[int]:
        """Prompt ids of a chat, the generation prompt included; ValueError where the template refuses it."""

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out."""

    @property
    def chat_template(self) -> str | None:
        """Source of the chat template."""

    @property
    def backend(self) -> Any:
        """The `tokenizers` object."""

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Ids that end a response."""


class ChatService:
    """Begins answers. One event loop only."""

    def __init__(self, engine: PolicyEngine, tokenizer: ChatTokenizer, sink: CallSink, config: ServeConfig) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._sink = sink
        self._config = config
        self._constrainer = Constrainer(tokenizer, engine.model.vocab_size)
        self._form: ToolForm = (
            form_of(tokenizer.chat_template) if config.tool_form == "auto" else cast(ToolForm, config.tool_form)
        )
        self._numbers = CallNumbers()
        self.marks = DeliveryMarks(sink.mark_calls)
        self._running: set[asyncio.Task[None]] = set()  # keeps the tasks alive
        load_validators()  # now, not in the event loop
        self.recorded = 0
        self.aborted = 0

    async def prepare(self, grant: Grant | None) -> None:
        """Read what `begin` has to know of an attempt, in a thread: only its first call here has to wait."""
        if grant is not None and grant.attempt_id not in self._numbers:
            self._numbers.learn(grant.attempt_id, await asyncio.to_thread(self._sink.list_calls, grant.attempt_id))

    def begin(
        self, chat: ChatRequest, grant: Grant | None, request_key: str = "", instead_of: Sequence[Call] = ()
    ) -> Answer:
        """Submit to the engine and return the answer, which goes on by itself. ApiError where it can't be served.

        instead_of: calls that a retry asks for in vain; once this answer is recorded they no longer count. To be called
        after `prepare`, with nothing awaited in between.
        """
        prompt = self._prompt(chat)
        self._check(chat, prompt, grant)
        grammar = self._grammar(chat)
        choices = [self._choice(chat, prompt, grant, index, grammar) for index in range(chat.n)]
        answer = self._answer(chat, choices, grant)
        answer.start()
        speaker = agent_key(chat.messages, chat.offered) if grant is not None else ""

        def record(choice: Choice, result: GenerationResult, reason: FinishReason) -> Call | None:
            if grant is None:
                return None
            return self._call(chat, grant, answer, choice, result, reason, speaker, request_key)

        async def save(call: Call) -> None:
            await self._save(call)
            self.marks.add(CallMark(old.call_id, superseded_by=answer.call_id) for old in instead_of)

        task = asyncio.get_running_loop().create_task(answer.run(record, save))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return answer

    def recall(self, chat: ChatRequest, grant: Grant, calls: Sequence[Call]) -> Answer:
        """The answer that these calls were, as it was given; see `recall.answers_of`."""
        choices = []
        for index, call in enumerate(calls):
            request = self._sampling(chat, call.prompt_ids, grant, call.sampling.seed)
            choice = self._blank(chat, index, call.call_id, call.sequence, call.sampling.seed, request)
            refill(choice, call)
            choices.append(choice)
        answer = self._answer(chat, choices, grant)
        answer.recall(calls[0].started_ns, delivered=all(call.delivered_ns > 0 for call in calls))
        return answer

    def _answer(self, chat: ChatRequest, choices: Sequence[Choice], grant: Grant | None) -> Answer:
        def note(delivered: bool) -> None:
            ids = [choice.call_id for choice in choices]
            self.marks.delivered(ids) if delivered else self.marks.undelivered(ids)

        return Answer(
            self._engine,
            choices[0].call_id,
            choices,
            len(choices[0].request.prompt_ids),
            stream=chat.stream,
            grace_s=self._config.disconnect_grace_s,
            note=note if grant is not None else None,
        )

    def _prompt(self, chat: ChatRequest) -> IntArray:
        if chat.prompt is not None:
            ids = self._tokenizer.encode(chat.prompt) if isinstance(chat.prompt, str) else list(chat.prompt)
            if ids and not 0 <= min(ids) <= max(ids) < 2**31:
                raise invalid("prompt has token ids outside of the vocabulary", "prompt")
            return np.asarray(ids, np.int32)
        try:
            messages = [for_template(message) for message in chat.messages]
            ids = self._tokenizer.encode_chat(messages, chat.tools or None)
        except ValueError as error:
            raise invalid(str(error), "messages") from error
        return np.asarray(ids, np.int32)

    def _check(self, chat: ChatRequest, prompt: IntArray, grant: Grant | None) -> None:
        """Refuse before the call gets a number: what was refused must not shift the seeds of later calls."""
        try:
            self._engine.check(self._sampling(chat, prompt, grant, seed=0))
        except PromptTooLong as error:
            raise invalid(str(error), "messages", "context_length_exceeded") from error
        except ValueError as error:
            raise invalid(str(error), "messages") from error
        try:
            self._engine.check_room(chat.n)
        except QueueFull as error:
            raise busy(str(error)) from error
        except EngineStopped as error:
            raise ApiError(503, str(error), headers={"retry-after": "1"}) from error

    def _grammar(self, chat: ChatRequest) -> TokenGrammar | None:
        """What the answer must be: a call where one is forced, else what fits the schema, or a call where tools are."""
        if chat.tool_choice != "auto":
            name = chat.tool_choice.removeprefix("=")
            tools = [t for t in chat.tools if chat.tool_choice == "required" or t["function"]["name"] == name]
            return self._constrainer.compile(forced_call(self._form, tools), "tool_choice")
        if chat.schema is None:
            return None
        rules = [f"start: {'answer | call' if chat.tools else 'answer'}", f"answer: {schema_rule(chat.schema)}"]
        if chat.tools:
            rules.append(forced_call(self._form, chat.tools, rule="call"))
        return self._constrainer.compile("\n".join(rules), "response_format")

    def _choice(
        self, chat: ChatRequest, prompt: IntArray, grant: Grant | None, index: int, grammar: TokenGrammar | None
    ) -> Choice:
        if grant is None:
            sequence, seed = index, free_seed(None if chat.seed is None else chat.seed + index)
        else:
            sequence, occurrence = self._numbers.take(grant.attempt_id, prompt)
            seed = call_seed(grant.rollout.seed, prompt, occurrence)
        request = replace(self._sampling(chat, prompt, grant, seed), grammar=grammar)
        return self._blank(chat, index, new_call_id(), sequence, seed, request)

    def _blank(
        self, chat: ChatRequest, index: int, call_id: str, sequence: int, seed: int, request: GenerationRequest
    ) -> Choice:
        """A choice without tokens."""
        text, reader = ResponseText(self._tokenizer.decode, chat.stop), None
        if chat.tools:
            names = [tool["function"]["name"] for tool in chat.tools]
            reader = ToolReader(self._form, names, call_id, parallel=chat.parallel_tool_calls)
        return Choice(index, call_id, sequence, seed, request, text, reader)

    def _sampling(self, chat: ChatRequest, prompt: IntArray, grant: Grant | None, seed: int) -> GenerationRequest:
        """The client's parameters under what the trainer imposes; training samples from the policy itself."""
        temperature, top_p = chat.temperature, chat.top_p
        wish = chat.max_tokens if chat.max_tokens is not None else self._config.default_max_tokens
        if grant is not None:
            imposed, training = grant.rollout.sampling, grant.rollout.mode == "train"
            temperature = imposed.temperature if imposed.temperature is not None else 1.0 if training else temperature
            top_p = imposed.top_p if imposed.top_p is not None else 1.0 if training else top_p
            wish = min(wish, imposed.max_tokens) if imposed.max_tokens is not None else wish
        room = max(1, self._engine.max_length - len(prompt))
        return GenerationRequest(prompt, min(wish, room), temperature, top_p, seed, top_logprobs=chat.top_logprobs)

    def _call(
        self,
        chat: ChatRequest,
        grant: Grant,
        answer: Answer,
        choice: Choice,
        result: GenerationResult,
        reason: FinishReason,
        speaker: str,
        request_key: str,
    ) -> Call:
        request = choice.request
        return Call(
            call_id=choice.call_id,
            rollout_id=grant.rollout.rollout_id,
            attempt_id=grant.attempt_id,
            sequence=choice.sequence,
            prompt_ids=request.prompt_ids,
            response_ids=np.asarray(choice.text.ids, np.int32),
            rollout_logps=np.asarray(choice.text.logps, np.float32),
            sampling=SamplingParams(
                request.temperature, request.top_p, request.max_tokens, choice.seed, chat.stop, result.kept_mass
            ),
            policy_version=result.policy_version,
            finish_reason=reason,
            agent_key=speaker,
            started_ns=answer.started_ns,
            ended_ns=time.time_ns(),
            request=chat.body,
            text=choice.text.text(),
            tool_calls=issued(choice.reader, chat.tools),
            request_key=request_key,
        )

    async def _save(self, call: Call) -> None:
        await asyncio.wrap_future(self._sink.record_call(call))
        self.recorded += 1
        self.aborted += call.finish_reason == "abort"
