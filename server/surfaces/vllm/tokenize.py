"""POST /tokenize and /detokenize, in vLLM's formats."""

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import Response
from numaserve.server.generation.answer_size import check_texts
from numaserve.server.generation.asked import Chat
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.prompts import check_text_length
from numaserve.server.generation.sampling import check_token_ids
from numaserve.server.generation.start import check_model, counted
from numaserve.server.http.body.need import BYTES_PER_TOKEN
from numaserve.server.http.body.route import body_route
from numaserve.server.http.disconnect import until_disconnect
from numaserve.server.http.errors import ApiError, context_length_exceeded
from numaserve.server.http.large_json import JsonAnswer, json_pieces
from numaserve.server.surfaces.openapi import BODY_ERRORS
from numaserve.server.surfaces.response_models import Detokenized, Tokenized
from numaserve.server.surfaces.vllm.tokenize_schema import DetokenizeRequest, TokenizeRequest
from numaserve.server.text.work import TextTooLong


def tokenize_router(context: ApiContext) -> APIRouter:
    """Return the routes of this module."""
    router = APIRouter(tags=["tokens"], route_class=body_route(context.bodies))

    @router.post("/tokenize", response_model=Tokenized, responses=BODY_ERRORS)
    async def tokenize(body: TokenizeRequest, request: Request) -> Response:
        """Tokenize a text or a conversation, in vLLM's format."""
        check_model(context, body.model)
        return await until_disconnect(request, _tokenized(context, request, body))

    @router.post("/detokenize", response_model=Detokenized, responses=BODY_ERRORS)
    async def detokenize(body: DetokenizeRequest, request: Request) -> Response:
        """Convert token ids to text, in vLLM's format."""
        check_model(context, body.model)
        if len(body.tokens) > context.limits.text_tokens:
            raise _too_long(context, len(body.tokens), "tokens")
        check_texts(context.limits, "tokens", characters=BYTES_PER_TOKEN * len(body.tokens))
        return await until_disconnect(request, _detokenized(context, body))

    return router


async def _tokenized(context: ApiContext, request: Request, body: TokenizeRequest) -> Response:
    if body.messages is not None:
        arguments = body.chat_template_kwargs or {}
        chat = Chat(body.messages, arguments, add_generation_prompt=body.add_generation_prompt)
        prompt = await counted(context, request, chat)
        with context.text.admit(len(prompt.tokens)) as turns:
            _check_size(context, "messages", len(prompt.text), with_texts=body.return_token_strs)
            return await turns.run(partial(_answer, context, prompt.tokens, with_texts=body.return_token_strs))
    text = body.prompt or ""
    check_text_length(context, len(text), "prompt")
    _check_size(context, "prompt", len(text), with_texts=body.return_token_strs)
    limit = context.limits.text_tokens
    with context.text.admit(len(text)) as turns:
        try:
            tokens = await turns.encode(text, max_tokens=limit, add_special_tokens=body.add_special_tokens)
        except TextTooLong as error:
            raise _too_long(context, error.tokens, "prompt") from error
        return await turns.run(partial(_answer, context, tokens, with_texts=body.return_token_strs))


async def _detokenized(context: ApiContext, body: DetokenizeRequest) -> Response:
    with context.text.admit(len(body.tokens)) as turns:
        await turns.run(partial(check_token_ids, body.tokens, context.vocab_size, "tokens"))
        text = await turns.decode(body.tokens, skip_special_tokens=body.skip_special_tokens)
        return await turns.run(lambda: JsonAnswer(b"".join(json_pieces({"prompt": text}))))


def _answer(context: ApiContext, tokens: list[int], *, with_texts: bool) -> Response:
    fields: dict[str, object] = {
        "count": len(tokens),
        "max_model_len": context.limits.context_length,
        "tokens": tokens,
    }
    if with_texts:
        fields["token_strs"] = map(context.tokenizer.token_text, tokens)
    return JsonAnswer(b"".join(json_pieces(fields)))


def _check_size(context: ApiContext, param: str, characters: int, *, with_texts: bool) -> None:
    """Check the size of the answer; a character is at most four bytes, and each of them may be a token."""
    most = 4 * characters
    check_texts(
        context.limits, param, tokens=min(most, context.limits.text_tokens), characters=most if with_texts else 0
    )


def _too_long(context: ApiContext, tokens: int, param: str) -> ApiError:
    limit = context.limits.text_tokens
    return context_length_exceeded(
        f"The input has {tokens} tokens or more; at most {limit} are allowed. Shorten the input.", param
    )
