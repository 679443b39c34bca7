"""The constraints of an answer: the client's format, its tool calls, and the end of its reasoning."""

from __future__ import annotations

from functools import partial

from numaserve.server.generation.asked import Asked, Chat, Constrained, Prompt, ToolUse
from numaserve.server.generation.constraint.call_constraint import in_last_message, loosely, with_calls, without_form
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.errors import bad_request
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.structured.thought import Thought, after_thought
from numaserve.server.structured.types import MatcherFactory, UnsupportedGrammar
from numaserve.server.text.caller import CALLER


async def matchers_of(context: ApiContext, asked: Asked, prompt: Prompt) -> MatcherFactory | None:
    """Return a factory of matchers for the answers to `prompt`; None where every answer is allowed.

    Raises `ApiError`, which names field and keyword, `QueueFull` and `NotReady`.
    """
    answer = await _of_answer(context, asked)
    if answer is None and asked.reasoning.max_tokens is None:
        return None  # nothing to enforce, whether the model reasons or not
    thought = _thought(context, asked, prompt)
    return answer if thought is None else after_thought(answer, thought)


async def _of_answer(context: ApiContext, asked: Asked) -> MatcherFactory | None:
    use = asked.tools
    if use is None or not use.offered:
        wanted = None if asked.constrained is None else await _in_messages(context, asked, asked.constrained)
        return None if wanted is None else await _compiled(context, asked, wanted)
    wanted = await _with_calls(context, use, asked.constrained)
    if wanted is None:
        return None
    try:
        return await context.grammars.compile(wanted.constraint, _scope(asked))
    except UnsupportedGrammar as error:
        loose = loosely(use)
        if loose is None:
            raise _refused(wanted, error) from error
    # A request without strict tools has no guarantee that arguments fit their schema.
    wanted = await _with_calls(context, loose, asked.constrained)
    return None if wanted is None else await _compiled(context, asked, wanted)


async def _with_calls(context: ApiContext, use: ToolUse, answer: Constrained | None) -> Constrained | None:
    calls = context.tool_format
    if calls is None:
        return without_form(use, answer)  # the response template parses the calls, without a known format
    # The time to write a grammar grows with the schemas: too long for the event loop.
    with context.text.admit(use.characters) as turns:
        return await turns.run(partial(with_calls, calls, use, answer))


async def _in_messages(context: ApiContext, asked: Asked, wanted: Constrained) -> Constrained:
    """Return the constraint of an answer whose text may be in a message after the reasoning's message."""
    calls = context.tool_format
    if calls is None or not calls.whole or not isinstance(asked.input, Chat):
        return wanted
    with context.text.admit(len(wanted.constraint.text)) as turns:
        return await turns.run(partial(in_last_message, calls, wanted))


async def _compiled(context: ApiContext, asked: Asked, wanted: Constrained) -> MatcherFactory:
    try:
        return await context.grammars.compile(wanted.constraint, _scope(asked))
    except UnsupportedGrammar as error:
        raise _refused(wanted, error) from error


def _scope(asked: Asked) -> CacheScope:
    return CacheScope(CALLER.get().cache_group, asked.sampling.cache_salt)


def _refused(wanted: Constrained, error: UnsupportedGrammar) -> Exception:
    return bad_request(f"'{wanted.param}' cannot be served: {error}.", wanted.param, "unsupported_grammar")


def _thought(context: ApiContext, asked: Asked, prompt: Prompt) -> Thought | None:
    """Return the reasoning before the answer, which no constraint of the answer covers; None without reasoning."""
    thoughts, tokenizer = context.reasoning_format, context.tokenizer
    if thoughts is None or not isinstance(asked.input, Chat):
        return None
    is_inside = thoughts.begins_inside_after(prompt.text)
    start = tokenizer.encode(thoughts.start, add_special_tokens=False)
    if not is_inside and len(start) != 1:
        return None  # no single token marks the beginning of reasoning
    budget = asked.reasoning.max_tokens
    closing = () if budget is None else tuple(tokenizer.encode(thoughts.end, add_special_tokens=False))
    return Thought(thoughts.end, tokenizer.token_bytes, None if is_inside else start[0], budget, closing)
