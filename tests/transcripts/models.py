"""The models of transcripts: what they can do, and a stand-in for the engine that runs them."""

import json
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from numaserve.server.answers.reasoning.formats import reasoning_formats
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.engine import types
from numaserve.server.engine.types import GenerationChunk
from numaserve.server.generation.classifier import Activation
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.generation.judge import Judge
from numaserve.server.generation.purpose import Classifies, Embeds, Generates
from numaserve.server.generation.sparse import SparseOutput
from numaserve.server.scheduler.request import Request

from tests.support.adapters import FakeRanks, make_adapters
from tests.support.api_fakes import EMBEDDING_SIZE, FakeEngine, FakeStream, make_context
from tests.support.byte_tokenizer import ByteTokenizer, Messages

LORAS = Path(__file__).with_name("loras")
LONG = 8000  # tokens of context, where prompts are JSON
_PROMPTS = {"query": "q: ", "document": "d: "}
_SETTINGS = EmbeddingSettings(prompts=_PROMPTS)
_DOCUMENT = b"<Document>: "


def _as_json(
    messages: Messages, tools: Sequence[object], arguments: Mapping[str, object], *, add_generation_prompt: bool
) -> str:
    """Write all that a template is given."""
    given = {"messages": messages, "tools": tools, "arguments": arguments}
    shown = {name: value for name, value in given.items() if value}
    return json.dumps(shown, ensure_ascii=False) + ("" if add_generation_prompt else " open")


class JudgedStream(FakeStream):
    """Chunks whose scores follow from the first letter of the document, counted from `a`, or of the second text."""

    async def __anext__(self) -> GenerationChunk:
        request = self._waiting[0].request if self._waiting else None
        chunk = await super().__anext__()
        assert request is not None
        prompt = list(request.prompt)
        if request.pooling is not None:
            first = prompt[request.pooling.second_text or 1] - ord("m")
            logits = [first, len(prompt) / 10, float(request.pooling.second_text > 0)]
            chunk.embedding = array("f", logits[: self._engine.dimensions]).tobytes()
        elif _DOCUMENT in (text := bytes(prompt)):
            behind = text[text.index(_DOCUMENT) + len(_DOCUMENT)] - ord("a")
            chunk.token_logprobs = [[-9.0, -9.0 + behind * math.log(2)]]
        return chunk


class JudgingEngine(FakeEngine):
    """An engine of a model that scores or labels texts."""

    def admit(self, requests: Sequence[Request]) -> FakeStream:
        super().admit(requests)
        return JudgedStream(self, requests)


def _writes(engine: FakeEngine) -> ApiContext:
    return replace(make_context(engine), other_names=("tagged:8b",))


def _calls(engine: FakeEngine, tokenizer: ByteTokenizer | None = None) -> ApiContext:
    return replace(
        make_context(engine, context_length=LONG, takes_predictions=True),
        tokenizer=tokenizer or ByteTokenizer(chat_template="tools tool_calls", render=_as_json),
        tool_format=tool_formats()["hermes"],
        reasoning_format=reasoning_formats()["think"],
    )


def _embeds(engine: FakeEngine, *, size: int = EMBEDDING_SIZE, tokens: int = 0, **settings: Any) -> ApiContext:
    purpose = Embeds(size, tokens=tokens, settings=EmbeddingSettings(**{"prompts": _PROMPTS} | settings))
    return make_context(engine, max_sequences=5, purpose=purpose)


def _classifies(engine: FakeEngine, *labels: str, activation: Activation = "none") -> ApiContext:
    return make_context(engine, purpose=Classifies(labels, activation), context_length=40)


def _judges(engine: FakeEngine) -> ApiContext:
    return make_context(engine, max_sequences=4, purpose=Generates(Judge(ord("n"), ord("y"))), context_length=600)


def _adapts(engine: FakeEngine) -> ApiContext:
    adapters = make_adapters(3, FakeRanks(), start=["alpha", "beta"])
    return replace(make_context(engine), adapters=adapters, lora_root=LORAS, is_local=True)


MODELS: dict[str, Callable[..., ApiContext]] = {
    "text": _writes,
    "tools": _calls,
    "no template for tools": lambda engine: _calls(engine, ByteTokenizer(render=_as_json)),
    "adapters": _adapts,
    "keys": lambda engine: make_context(engine, keys=["one", "two"], max_body_bytes=1000),
    "strict": lambda engine: make_context(engine, strict_fields=True),
    "dense": _embeds,
    "sparse": lambda engine: make_context(engine, purpose=Embeds(sparse=SparseOutput(1), settings=_SETTINGS)),
    "tokens": lambda engine: _embeds(engine, tokens=8),
    "judge": _judges,
    "scores": lambda engine: _classifies(engine, "LABEL_0", activation="sigmoid"),
    "logits": lambda engine: _classifies(engine, "LABEL_0"),
    "labels": lambda engine: _classifies(engine, "byte", "tokens", "pair"),
}
_JUDGING = {"judge", "scores", "logits", "labels"}


def context_of(model: str, engine: FakeEngine) -> ApiContext:
    """Return a new context; options of a model follow its name, as JSON."""
    name, _, options = model.partition(" {")
    return MODELS[name](engine, **json.loads("{" + options if options else "{}"))


def engine_of(model: str, fields: Mapping[str, Any]) -> FakeEngine:
    """Return a new engine for a model; an error among the fields is a list of its class and its arguments."""
    raised = {name: _error(*value) for name, value in fields.items() if name in ("refusal", "failure")}
    return (JudgingEngine if model in _JUDGING else FakeEngine)(**{**fields, **raised})


def _error(name: str, *arguments: Any) -> Exception:
    kind = RuntimeError if name == "RuntimeError" else getattr(types, name)
    error: Exception = kind(*arguments)
    return error
