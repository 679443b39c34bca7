"""Plays the requests of transcripts to servers, and writes what they answer."""

import json
import re
from array import array
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

import httpx
import msgspec
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.scheduler.request import Request
from numaserve.workers.interface.protocol import SamplingParams

from tests.golden.normalise import DATE, HEX, IDS, TIMES
from tests.support.api_fakes import FakeEngine
from tests.support.byte_tokenizer import EOS, ByteTokenizer
from tests.support.stand_in import ServedContext
from tests.transcripts.form import Exchange, Scene, read, shortened, written
from tests.transcripts.models import LORAS, context_of, engine_of

_HEADERS = (
    *("retry-after", "www-authenticate", "allow", "cache-control", "x-accel-buffering", "location", "access-control"),
    *("x-numaserve", "x-ratelimit", "vary"),
)
_JSON, _EVENTS = "application/json", "text/event-stream"
# Documents that tests of their own read: the answer is shown without them.
_LEFT_OUT = re.compile(r"text/(html|css|javascript)|font/|image/|text/plain; version")
_PATHS_LEFT_OUT = {"/openapi.json"}
_TOKENIZER = ByteTokenizer()
_SHOWN = 300  # characters of a prompt
# Clients see these fields elsewhere, or a transcript shows them in another form.
_NOT_SHOWN = {"request_id", "prompt", "sampling", "scope", "client", "matcher", "stop_token_ids"}
_SEEDED = re.compile(r'seed": [0-9]')  # all other seeds are random
_NUMBERED = re.compile(r"\b((?:cmpl|chatcmpl|resp|msg|rs|fc|call|toolu)[-_])([0-9]{1,3})(?![0-9a-zA-Z])")


class Clients:
    """A server, its client and its engine for each model, started when a scene needs them."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[httpx.Client, FakeEngine]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def replayed(self, file: Path) -> str:
        """Return a file as it is when recorded now."""
        return written((each, lines) for scene in read(file) for each, lines in self._play(scene))

    def _play(self, scene: Scene) -> Iterator[tuple[Exchange, list[str]]]:
        if scene.model not in self._made:
            engine = engine_of(scene.model, {})
            server = self._stack.enter_context(ServedContext(context_of(scene.model, engine)))
            client = self._stack.enter_context(httpx.Client(base_url=server.url, timeout=60))
            self._made[scene.model] = client, engine
        client, engine = self._made[scene.model]
        vars(engine).update(vars(engine_of(scene.model, scene.engine)))
        names = _Names()
        for each in scene.exchanges:
            engine.admitted.clear()
            content = None if each.body is None else names.real(each.body).encode()
            headers = {"content-type": _JSON} if content is not None else {}
            answer = client.request(
                each.method, names.real(each.path), content=content, headers={**headers, **each.headers}
            )
            lines = [f"+ {_described(request, each)}" for request in engine.admitted]
            yield each, [names.shown(line) for line in (*lines, *_answer(each, answer))]


class _Names:
    """Numbers for the ids of a scene, in the order of their appearance."""

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def shown(self, line: str) -> str:
        """Return a line with numbers for its ids, and without times."""
        line = line.replace(str(LORAS), "LORAS")
        line = IDS.sub(lambda found: self._number(found[0], found[1] + found[2]), line)
        line = HEX.sub(lambda found: self._number(found[0], "hex_"), line)
        return DATE.sub("DATE", TIMES.sub(r"\1:TIME", line))

    def _number(self, name: str, prefix: str) -> str:
        count = sum(each.startswith(prefix) for each in self._shown.values())
        return self._shown.setdefault(name, f"{prefix}{count + 1}")

    def real(self, text: str) -> str:
        real = {shown: name for name, shown in self._shown.items()}
        return _NUMBERED.sub(lambda found: real.get(found[0], found[0]), text)


def _described(request: Request, exchange: Exchange) -> str:
    shown = {
        each.name: getattr(request, each.name)
        for each in fields(request)
        if each.name not in _NOT_SHOWN and getattr(request, each.name) != each.default
    }
    sampling = msgspec.structs.asdict(request.sampling)
    neutral = msgspec.structs.asdict(SamplingParams())
    shown |= {name: value for name, value in sampling.items() if value != neutral[name]}
    if not _SEEDED.search(exchange.body or ""):
        shown.pop("seed", None)
    if request.stop_token_ids != {EOS} and request.pooling is None:
        shown["stop_token_ids"] = sorted(request.stop_token_ids)
    if request.matcher is not None:
        shown["constrained"] = True
    return f"{_prompt(request)} {json.dumps(shown, ensure_ascii=False, default=_plain)}"


def _plain(value: Any) -> Any:
    match value:
        case frozenset():
            return sorted(value)
        case array():
            return list(value)
        case Adapter():
            return value.name
        case _:
            return str(value)


def _prompt(request: Request) -> str:
    tokens = list(request.prompt)
    text = b"".join(map(_TOKENIZER.token_bytes, tokens)).decode(errors="replace")
    if _TOKENIZER.encode(text, add_special_tokens=False) != tokens or min(tokens) < ord("\n"):
        return json.dumps(tokens)
    if len(text) > _SHOWN + 40 and text[:1] != "{":
        text = f"{text[:_SHOWN]}…{text[-20:]} ({len(text)} characters)"
    return json.dumps(text, ensure_ascii=False)


def _answer(exchange: Exchange, answer: httpx.Response) -> Iterator[str]:
    kind = answer.headers.get("content-type", "")
    kept = [f"| {key}: {value}" for key, value in sorted(answer.headers.items()) if key.startswith(_HEADERS)]
    lines = _lines(exchange, answer, kind)
    body = [lines.pop(0)] if kind == _JSON and lines and not kept else []
    yield " ".join(["<", str(answer.status_code), *([kind] if kind not in ("", _JSON) else []), *kept, *body])
    yield from (f"< {line}" for line in shortened(lines))


def _lines(exchange: Exchange, answer: httpx.Response, kind: str) -> list[str]:
    if _LEFT_OUT.match(kind) or exchange.path.partition("?")[0] in _PATHS_LEFT_OUT:
        return []
    text = answer.content.decode("utf-8", "backslashreplace")
    if kind.startswith(_EVENTS):
        *events, rest = text.split("\n\n")
        return [*(event.replace("\n", " ⏎ ") for event in events), *([f"cut off: {rest}"] if rest else [])]
    return text.splitlines()
