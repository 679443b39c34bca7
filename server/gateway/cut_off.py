"""The end of a stream whose model process has died: an error in the format of its API, if one can still be read."""

from numaserve.server.gateway.passing import AnswerCutOff
from numaserve.server.http.errors import ApiError
from numaserve.server.surfaces.anthropic.stream import EVENTS as ANTHROPIC
from numaserve.server.surfaces.event_stream import Framing
from numaserve.server.surfaces.ollama.answer import LINES
from numaserve.server.surfaces.openai.frame import EVENTS as OPENAI

# Without /v1/responses: its last event repeats the whole response, which the gateway does not keep.
_FRAMINGS: dict[str, Framing] = {
    "/v1/chat/completions": OPENAI,
    "/v1/completions": OPENAI,
    "/v1/messages": ANTHROPIC,
    "/api/chat": LINES,
    "/api/generate": LINES,
}


def last_event(path: str, cut: AnswerCutOff) -> bytes | None:
    """Return the last bytes of a stream of `path`; None if it was no stream or was cut off inside an event."""
    framing = _FRAMINGS.get(path)
    if framing is None or not cut.media_type.startswith(framing.media_type) or not cut.between_events:
        return None
    error = ApiError(
        503,
        "The model process ended in the middle of the response. Retry the request.",
        kind="server_error",
        code="server_ended",
        refusal=None,
    )
    return framing.error(error) + framing.end
