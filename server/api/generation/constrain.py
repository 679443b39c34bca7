"""Matchers of what a client asks an answer to match."""

from numaserve.server.api.context import ApiContext
from numaserve.server.api.errors import bad_request
from numaserve.server.api.generation.asked import Constrained
from numaserve.server.structured.types import MatcherFactory, UnsupportedGrammar


async def matchers_of(context: ApiContext, asked: Constrained) -> MatcherFactory:
    """Raises `ApiError`, which names field and keyword, `QueueFull` and `NotReady`."""
    try:
        return await context.grammars.compile(asked.constraint)
    except UnsupportedGrammar as error:
        raise bad_request(f"'{asked.param}' cannot be served: {error}.", asked.param, "unsupported_grammar") from error
