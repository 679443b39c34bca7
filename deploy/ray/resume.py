"""A stream that can go on elsewhere: what of it a client has had, and the request for the rest."""

from __future__ import annotations

import json
import secrets
from typing import Any

ROUTES = frozenset({"/v1/chat/completions", "/v1/completions"})
_END = b"data: [DONE]"
_PREFIX = b"data: "


class Resumable:
    """A streamed answer of `body`, which a server gives and another one may have to go on with.

    The body asks for token ids, and for a seed, so that whoever goes on draws the same tokens. `take` passes events on
    without what the client did not ask for. The request for the rest, `rest`, ends before the tokens of the last event
    that had any, and what follows it up to here is left out when it comes again: so there is always a token to be
    generated, also when a server died between the last token and the end.
    """

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body | {"return_token_ids": True}
        if body.get("seed") is None:
            self._body["seed"] = secrets.randbits(63)
        self._wants_ids = body.get("return_token_ids") is True
        self._tokens: list[int] = []  # of the events that were passed on
        self._last: list[int] = []  # of the last of them that had any
        self._since = 0  # events that were passed on from that one on
        self._passed = 0
        self._kept: list[int] = []  # what the request for the rest began with
        self._again = 0  # events of its answer that had been passed on
        self._to_skip = 0  # of these, still to come
        self._unfinished = b""  # an event of which only a part has come
        self._head: dict[str, Any] = {}  # what all events of the answer say alike
        self.ended = False  # the client has had all

    @staticmethod
    def of(path: str, body: object) -> Resumable | None:
        """None for what no other server could go on with exactly."""
        if path not in ROUTES or not isinstance(body, dict) or body.get("stream") is not True:
            return None
        several = (body.get("n") or 1) != 1 or (isinstance(body.get("prompt"), list) and _is_many(body["prompt"]))
        scored = body.get("logprobs") is not None and body["logprobs"] is not False
        usage = (body.get("stream_options") or {}).get("continuous_usage_stats")
        unknown = several or scored or usage or body.get("echo") or body.get("resume_token_ids")
        return None if unknown else Resumable(body)

    def first(self) -> bytes:
        """The body that begins the answer."""
        return json.dumps(self._body).encode()

    def rest(self) -> bytes:
        """The body that goes on with it; what `take` is given from now on is its answer."""
        if not self._to_skip:  # else it failed before all that was passed on had come again
            self._kept = self._tokens[: len(self._tokens) - len(self._last)]
            # From the beginning every event comes again.
            self._again = self._since if self._kept else self._passed
        self._to_skip = self._again
        self._tokens, self._last = [*self._kept], []
        self._since = self._passed = 0
        self._unfinished = b""
        return json.dumps(self._body | {"resume_token_ids": self._kept}).encode() if self._kept else self.first()

    def take(self, piece: bytes) -> bytes:
        """What to pass on of the next bytes of a server's answer."""
        *events, self._unfinished = (self._unfinished + piece).split(b"\n\n")
        return b"".join(self._passed_on(event) for event in events)

    def _passed_on(self, event: bytes) -> bytes:
        if event == _END:
            self.ended = True
            return event + b"\n\n"
        if not event.startswith(_PREFIX):
            return event + b"\n\n"  # a comment: a sign of life
        payload = json.loads(event.removeprefix(_PREFIX))
        if "error" in payload:
            self.ended = True
            return event + b"\n\n"
        self._count(payload)
        if self._to_skip:
            self._to_skip -= 1
            return b""
        self._make_alike(payload)
        return _PREFIX + json.dumps(payload, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"

    def _count(self, payload: dict[str, Any]) -> None:
        tokens = [token for choice in payload["choices"] for token in choice.get("token_ids") or ()]
        if tokens:
            self._tokens += tokens
            self._last, self._since = tokens, 0
        self._since += 1
        self._passed += 1

    def _make_alike(self, payload: dict[str, Any]) -> None:
        """As if one server had sent all: its id and time; token ids only where they were asked for."""
        if not self._head:
            self._head = {name: payload[name] for name in ("id", "created") if name in payload}
        payload |= self._head
        if not self._wants_ids:
            payload.pop("prompt_token_ids", None)
            for choice in payload["choices"]:
                choice.pop("token_ids", None)
                choice.pop("prompt_token_ids", None)


def _is_many(prompt: list[Any]) -> bool:
    """Whether a list is one of several prompts, and not of one prompt's token ids."""
    return len(prompt) > 1 and not isinstance(prompt[0], int)
