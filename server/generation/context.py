"""The context of the endpoints: all parts of the application."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fastapi import Request
from numaserve.server.adapters.adapters import Adapters
from numaserve.server.answers.reasoning.format import ReasoningFormat
from numaserve.server.answers.response_template.template import ResponseTemplate
from numaserve.server.answers.tools.format import ToolFormat
from numaserve.server.engine.types import EngineProtocol
from numaserve.server.generation.conversation.late_system import LateSystem
from numaserve.server.generation.conversation.text_contents import TextContents
from numaserve.server.generation.purpose import Generates, Purpose
from numaserve.server.generation.running import RunningRequests
from numaserve.server.generation.served_names import LATEST
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.generation.vision import Vision
from numaserve.server.http.auth.keys import OPEN_PATHS, Callers, PrefixSharing
from numaserve.server.http.auth.peers import client_at
from numaserve.server.http.body.route import Bodies
from numaserve.server.http.browser_rules import BrowserRules
from numaserve.server.http.limits import ApiLimits
from numaserve.server.http.ui_files import ui_files
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.client import Client
from numaserve.server.text.work import TextWork
from numaserve.server.tokenizer.types import RendersChats, TokenizerProtocol
from starlette.requests import HTTPConnection

if TYPE_CHECKING:
    from numaserve.server.structured.grammars import Grammars


@dataclass(frozen=True)
class ApiContext:
    """The parts that the application is built from. Without `api_keys` every caller is served."""

    engine: EngineProtocol
    tokenizer: TokenizerProtocol
    metrics: Metrics
    model_name: str  # the model name in answers
    model_path: str  # the path that the model was loaded from
    version: str
    limits: ApiLimits
    api_keys: Callers | None = None
    log_prompts: bool = False
    other_names: tuple[str, ...] = ()  # further model names that requests may use
    own_name: str = ""  # the model's own name: hub id, or the name of its folder or file; empty: `model_name`
    tokenizer_info: bool = False  # serve GET /tokenizer_info, which shows the chat template
    takes_predictions: bool = False  # use the predicted output of a request for draft tokens
    strict_fields: bool = False  # refuse unknown fields
    sampling_defaults: Sampling = field(default_factory=Sampling)  # for parameters that a request leaves out
    root_path: str = ""  # path under which a proxy serves this server: empty, or "/" and a name, and so on
    sse_ping_seconds: float = 15.0  # seconds without output until a stream gets a comment; 0 sends none
    tool_format: ToolFormat | None = None  # None: the format of the model's calls is unknown
    reasoning_format: ReasoningFormat | None = None  # None: the model does not reason before it answers
    response_template: ResponseTemplate | None = None  # parses complete answers where the format is unknown
    traced: bool = False  # spans of requests are made, which may be part of the callers' traces
    ui: bool = False  # serve the page of GET /ui
    purpose: Purpose = field(default_factory=Generates)
    vision: Vision | None = None  # None: the model takes no images
    browsers: BrowserRules = field(default_factory=BrowserRules)
    adapters: Adapters = field(default_factory=Adapters)
    lora_root: Path | None = None  # folder below which adapters may be loaded; None: none may
    is_local: bool = False  # only this machine can send requests
    created: int = field(default_factory=lambda: int(time.time()))

    @cached_property
    def open_paths(self) -> frozenset[str]:
        """The paths that need no key: probes, and the files of the page that asks its reader for a key."""
        return OPEN_PATHS | (ui_files().keys() if self.ui else frozenset())

    @cached_property
    def bodies(self) -> Bodies:
        """The decoder of request bodies."""
        return Bodies(self.limits, refuse_unknown=self.strict_fields, takes_images=self.vision is not None)

    @cached_property
    def running(self) -> RunningRequests:
        """The running requests: those that wait for text or receive it."""
        return RunningRequests()

    @cached_property
    def text(self) -> TextWork:
        """The threads for all tokenizing. Each executor takes as many requests as the engine does."""
        return TextWork(self.tokenizer, max_requests=self.limits.max_sequences)

    @cached_property
    def renderer(self) -> RendersChats:
        """The renderer of conversations: the model's chat template."""
        return self.tokenizer if self.vision is None else TextContents(self.tokenizer)

    @cached_property
    def late_system(self) -> LateSystem:
        """The treatment of system turns that are not the first turn."""
        return LateSystem(self.renderer)

    @cached_property
    def marker_tokens(self) -> frozenset[int]:
        """The special tokens that the parser of an answer has to see, and removes from its text."""
        if self.response_template is not None:
            return self.tokenizer.special_token_ids  # an expression may use any special token
        calls, thoughts = self.tool_format, self.reasoning_format
        texts = {*(calls.tokens if calls else ()), *(thoughts.tokens if thoughts else ())}
        return frozenset(id for id in self.tokenizer.special_token_ids if self.tokenizer.token_text(id) in texts)

    @property
    def tells_calls(self) -> bool:
        """True if tool calls are separated from the model's text."""
        template = self.response_template
        return self.tool_format is not None or (template is not None and template.has_calls)

    @property
    def tells_thoughts(self) -> bool:
        """True if reasoning is separated from the model's text."""
        template = self.response_template
        return self.reasoning_format is not None or (template is not None and template.has_thoughts)

    @cached_property
    def grammars(self) -> Grammars:
        """The compiler of constraints."""
        from numaserve.server.structured.grammars import Grammars  # noqa: PLC0415 a library for text alone

        return Grammars(self.tokenizer, self.limits.vocab_size)

    def prepare(self) -> None:
        """Load what the first request with a constraint needs, so that it blocks no other. Meant for a thread."""
        if isinstance(self.purpose, Generates):
            self.grammars.prepare()

    def close(self) -> None:
        """End the threads and processes that work on requests; waiting work is refused."""
        self.text.close()
        self.bodies.close()
        if self.vision is not None:
            self.vision.decoder.close()
        if self.response_template is not None:
            self.response_template.close()
        if "grammars" in self.__dict__:
            self.grammars.close()

    def owner_of(self, request: Request) -> bytes:
        """Return the owner of a request, by its API key: stored objects are private to an owner. Without keys all
        callers are one owner."""
        return b"" if self.api_keys is None else self.api_keys.owner(request.scope["headers"])

    def client_of(self, request: HTTPConnection) -> Client:
        """Return the client that shares the server with others: by API key, and without keys by address."""
        scope = request.scope
        return client_at(scope.get("client")) if self.api_keys is None else self.api_keys.client(scope["headers"])

    @property
    def prefix_sharing(self) -> PrefixSharing:
        """The clients that share cached prefixes."""
        return "everyone" if self.api_keys is None else self.api_keys.sharing

    @property
    def model_names(self) -> tuple[str, ...]:
        """Every model name that a request may use: the names of the model, and those of its adapters."""
        return self.model_name, *self.other_names, *self.adapters.loaded

    def serves(self, name: str) -> bool:
        """Return whether a request may use this name. Clients of Ollama append `:latest`, on other routes too."""
        return not {name, name.removesuffix(LATEST)}.isdisjoint(self.model_names)

    @property
    def vocab_size(self) -> int:
        """The number of token ids that tokenizer and model share: models pad their vocabulary, tokenizers extend it."""
        return min(self.limits.vocab_size, self.tokenizer.vocab_size)

    @property
    def system_fingerprint(self) -> str:
        """A name that changes when the same seed may give other tokens: with another version of the server."""
        return f"numaserve-{self.version}"
