"""The start of a request: from the client's request to admitted sequences."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import Request
from numaserve.server.answers.tools.answer import output_parser
from numaserve.server.generation.answer.reading import AnswerReader
from numaserve.server.generation.answer.whole_reading import WholeReader
from numaserve.server.generation.answer_size import bounded
from numaserve.server.generation.asked import Asked, Chat, Prompt, ToolUse, total_tokens
from numaserve.server.generation.chosen import adapter_of, chosen_adapter
from numaserve.server.generation.constraint.constrain import matchers_of
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.generation import Generation
from numaserve.server.generation.prompts import prompts_of, render
from numaserve.server.generation.running import RunningRequest
from numaserve.server.generation.sampling import generation_requests
from numaserve.server.generation.served_purpose import check_generates
from numaserve.server.http.access_log import record_of
from numaserve.server.http.disconnect import until_disconnect
from numaserve.server.http.errors import bad_request, not_ready
from numaserve.server.scheduler.adapter import Adapter
from numaserve.server.text.caller import CALLER


async def start(context: ApiContext, request: Request, asked: Asked, request_id: str) -> Generation:
    """Make prompts and admit their sequences, all or none; `request_id` is the id of the answer.

    Raises `ApiError` for a request that cannot be served, `Aborted`, and what `Admits.admit` raises.
    """
    adapter = adapter_of(context, asked)
    check_ready(context)
    check_generates(context.purpose)
    _check_sequences(context, asked)
    _check_tools(context, asked)
    record = record_of(request)
    if adapter is not None:
        record.model = adapter.name
    if context.log_prompts:
        record.prompt = asked.input.conversation.messages if isinstance(asked.input, Chat) else asked.input.prompts
    running = context.running.enter(context.owner_of(request), request_id)
    try:
        generation = await _admitted(context, request, asked, request_id, running, adapter=adapter)
    except BaseException:
        running.leave()
        raise
    running.admitted(generation.abort)
    generation.when_closed(running.leave)
    return generation


async def _admitted(
    context: ApiContext,
    request: Request,
    asked: Asked,
    request_id: str,
    running: RunningRequest,
    *,
    adapter: Adapter | None,
) -> Generation:
    prompts, record = await until_disconnect(request, prompts_of(context, asked)), record_of(request)
    record.prompt_tokens, record.left_out = total_tokens(prompts), prompts[0].left_out
    asked = bounded(context, asked, prompts)
    matcher = await until_disconnect(request, matchers_of(context, asked, prompts[0]))
    running.check()
    ids = [request_id] if len(prompts) == 1 else [f"{request_id}-{index}" for index in range(len(prompts))]
    requests = [
        generation_requests(context, asked, prompt, each, client=CALLER.get(), matcher=matcher, adapter=adapter)
        for prompt, each in zip(prompts, ids, strict=True)
    ]
    readers, drops = _readers(context, asked, prompts), asked.max_tokens == 0
    return Generation.admit(context.engine, prompts, requests, record, readers, drop_output=drops)


async def counted(context: ApiContext, request: Request, chat: Chat, use: ToolUse | None = None) -> Prompt:
    """Return the prompt of a conversation that is not continued. Raises as `render` does."""
    prompt = await until_disconnect(request, render(context, chat, use))
    record_of(request).left_out = prompt.left_out
    return prompt


def check_model(context: ApiContext, model: str | None) -> None:
    """Raise `ApiError` 404 for a model other than the served one and its adapters; None means the served model."""
    chosen_adapter(context, model)


def check_ready(context: ApiContext) -> None:
    """Raise `ApiError` 503 while requests are not admitted."""
    if not context.engine.takes_requests():
        raise not_ready("The server is not ready: it is loading or shutting down. Try again shortly.")


def _check_sequences(context: ApiContext, asked: Asked) -> None:
    prompts = 1 if isinstance(asked.input, Chat) else len(asked.input.prompts)
    sequences = prompts * asked.sampling.n
    if sequences > context.limits.max_sequences:
        message = (
            f"The request asks for {sequences} sequences; at most {context.limits.max_sequences} are allowed. "
            "Send fewer prompts or a smaller 'n'."
        )
        raise bad_request(message, asked.input.param, "too_many_sequences")


def _check_tools(context: ApiContext, asked: Asked) -> None:
    if asked.tools is not None and asked.tools.offered and not context.tells_calls:
        message = "The tool call format of this model is unknown. The operator can set it with --tool-call-parser."
        raise bad_request(message, "tools", "tools_unsupported")


def _readers(context: ApiContext, asked: Asked, prompts: Sequence[Prompt]) -> list[AnswerReader] | None:
    """Return a reader for each answer, in order; None where every answer is only text."""
    if not isinstance(asked.input, Chat):
        return None
    readers = [_reader(context, asked, prompt) for prompt in prompts for _ in range(asked.sampling.n)]
    return [reader for reader in readers if reader is not None] or None


def _reader(context: ApiContext, asked: Asked, prompt: Prompt) -> AnswerReader | None:
    use, calls = asked.tools or ToolUse(()), context.tool_format
    if context.response_template is not None:
        return WholeReader(
            context.response_template,
            prompt.text,
            use.offered,
            thoughts=context.reasoning_format,
            separate=asked.reasoning.separate,
            include=asked.reasoning.include,
            parallel=use.parallel,
            hides=asked.sampling.skip_special_tokens,
        )
    thoughts = context.reasoning_format if asked.reasoning.separate else None
    parser = output_parser(calls, thoughts, use.offered, prompt.text)
    if parser is None:
        return None
    id_length = calls.id_length if calls else None
    return AnswerReader(parser, include=asked.reasoning.include, parallel=use.parallel, id_length=id_length)
