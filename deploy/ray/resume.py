"""The resumption of a stream on another server: the part that a client has received, and the request for the rest."""

from __future__ import annotations

import json
import secrets
from typing import Any

ROUTES = frozenset({"/v1/chat/completions", "/v1/completions"})
_END = b"data: [DONE]"
_PREFIX = b"data: "


class Resumable:
    """A streamed answer to `body`, which another server can continue.

    The body asks for token ids, and sets a seed, so that the next server draws the same tokens. `take` passes events on
    without the fields that the client did not request. The request for the rest, `rest`, ends before the tokens of the
    last event that had any. The events from there on are skipped when they arrive again. So there is always a token to
    generate, even if a server died between the last token and the end.
    """

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body | {"return_token_ids": True}
        if body.get("seed") is None:
            self._body["seed"] = secrets.randbits(63)
        self._wants_ids = body.get("return_token_ids") is True
        self._tokens: list[int] = []  # token ids of the events that were passed on
        self._last: list[int] = []  # token ids of the last event that had any
        self._since = 0  # events passed on since that event, inclusive
        self._passed = 0
        self._kept: list[int] = []  # generated token ids that the request for the rest contains
        self._again = 0  # events of its answer that were passed on before
        self._to_skip = 0  # such events that are still to arrive
        self._unfinished = b""  # the received part of an incomplete event
        self._head: dict[str, Any] = {}  # fields that are equal in all events of the answer
        self.ended = False  # the client has received the whole answer

    @staticmethod
    def of(path: str, body: object) -> Resumable | None:
        """Return the answer to a request; None if another server could not continue it exactly."""
        if path not in ROUTES or not isinstance(body, dict) or body.get("stream") is not True:
            return None
        several = (body.get("n") or 1) != 1 or (isinstance(body.get("prompt"), list) and _is_many(body["prompt"]))
        scored = body.get("logprobs") is not None and body["logprobs"] is not False
        usage = (body.get("stream_options") or {}).get("continuous_usage_stats")
        unknown = several or scored or usage or body.get("echo") or body.get("resume_token_ids")
        return None if unknown else Resumable(body)

    def first(self) -> bytes:
        """Return the body of the first request."""
        return json.dumps(self._body).encode()

    def rest(self) -> bytes:
        """Return the body that requests the rest. From now on, `take` expects the answer to this request."""
        if not self._to_skip:  # otherwise the server failed before all skipped events had arrived again
            self._kept = self._tokens[: len(self._tokens) - len(self._last)]
            # An answer from the beginning repeats every event.
            self._again = self._since if self._kept else self._passed
        self._to_skip = self._again
        self._tokens, self._last = [*self._kept], []
        self._since = self._passed = 0
        self._unfinished = b""
        return json.dumps(self._body | {"resume_token_ids": self._kept}).encode() if self._kept else self.first()

    def take(self, piece: bytes) -> bytes:
        """Return the part of the next bytes of a server's answer that is passed on."""
        *events, self._unfinished = (self._unfinished + piece).split(b"\n\n")
        return b"".join(self._passed_on(event) for event in events)

    def _passed_on(self, event: bytes) -> bytes:
        if event == _END:
            self.ended = True
            return event + b"\n\n"
        if not event.startswith(_PREFIX):
            return event + b"\n\n"  # a comment, sent to keep the connection alive
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
        """Give all events the first server's id and time, and remove token ids that the client did not request."""
        if not self._head:
            self._head = {name: payload[name] for name in ("id", "created") if name in payload}
        payload |= self._head
        if not self._wants_ids:
            payload.pop("prompt_token_ids", None)
            for choice in payload["choices"]:
                choice.pop("token_ids", None)
                choice.pop("prompt_token_ids", None)


def _is_many(prompt: list[Any]) -> bool:
    """Return whether a list contains several prompts rather than the token ids of one prompt."""
    return len(prompt) > 1 and not isinstance(prompt[0], int)
