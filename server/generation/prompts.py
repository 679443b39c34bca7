"""Prompts: conversations rendered by the model's template, and texts, both as token ids."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import cast

from numaserve.server.answers.tools.formats import plain_format
from numaserve.server.generation.asked import Asked, Chat, Prompt, Texts, ToolUse
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.conversation.content import Content, is_image, parts_of, texts_of
from numaserve.server.generation.conversation.fill_in import fill_in_of
from numaserve.server.generation.conversation.plain_tools import described, in_plain_text
from numaserve.server.generation.pictures import decoded, see
from numaserve.server.generation.placeholders import defused, defused_but, expanded, placed
from numaserve.server.generation.sampling import check_token_ids, output_limit
from numaserve.server.generation.truncation import check_length, cut_text, cut_tokens, limit_of
from numaserve.server.http.errors import ApiError, Overflow, bad_request, context_length_exceeded, template_unavailable
from numaserve.server.images.types import Picture
from numaserve.server.text.work import TextTooLong, Turns
from numaserve.server.tokenizer.types import ChatTemplateError, ChatTemplateUnavailable

# The average token of every vocabulary is far shorter. A longer text cannot fit, and is refused before it keeps the
# tokenizer busy.
_MAX_CHARACTERS_PER_TOKEN = 256
_TOO_LONG = "the prompt has more than {} tokens. Shorten the prompt."


async def prompts_of(context: ApiContext, asked: Asked) -> list[Prompt]:
    """Return the prompts, none of them empty. Raises `ApiError` and `QueueFull`."""
    given = asked.input
    if isinstance(given, Chat):
        prediction = asked.prediction if context.takes_predictions else ""
        return [await render(context, given, asked.tools, prediction, asked.sampling.cache_salt)]
    return await _texts(context, asked, given)


async def _texts(context: ApiContext, asked: Asked, texts: Texts) -> list[Prompt]:
    skip = asked.sampling.skip_special_tokens
    pictures: Sequence[Picture] = ()
    if texts.images:
        pictures = await decoded(context, texts.images, asked.sampling.cache_salt)
        texts = replace(texts, prompts=[expanded(context, cast("str", texts.prompts[0]), pictures, texts.param)])
    for given in texts.prompts:
        if isinstance(given, str):
            if texts.length.cut is None:
                check_text_length(context, len(given), texts.param)
        elif asked.pool is None:  # pooling needs no space for output
            output_limit(len(given), None, None, context.limits.context_length, texts.param)
    check_text_length(context, len(texts.suffix), "suffix")
    with context.text.admit(sum(map(len, texts.prompts)) + len(texts.suffix)) as turns:
        if texts.length.cut is None and not texts.suffix and isinstance(texts.prompts[0], str):
            prompts = await _plain(context, texts, cast("Sequence[str]", texts.prompts), turns)
        else:
            prompts = [await _prompt(context, texts, given, turns, skip=skip) for given in texts.prompts]
        prompts = await _with_tiles(context, turns, prompts, pictures, texts.param)
    if texts.second_texts:
        prompts = [replace(prompt, second_text=at) for prompt, at in zip(prompts, texts.second_texts, strict=True)]
    if not all(prompt.tokens for prompt in prompts):
        message = "A prompt is empty, and this model has no beginning-of-sequence token. Send a prompt with text."
        raise bad_request(message, texts.param, "empty_prompt")
    return prompts


async def render(
    context: ApiContext, chat: Chat, use: ToolUse | None = None, prediction: str = "", salt: str = ""
) -> Prompt:
    """Render a conversation with tools by the model's own template, and tokenize the `prediction` of its answer.

    Decoded images are found again within the cache scope of the `salt`. Raises `ApiError`, `QueueFull` and `NotReady`.
    """
    conversation, template = chat.conversation, context.tokenizer.chat_template
    check_text_length(context, conversation.characters, chat.param)
    seen = await see(context, conversation, chat.param, salt)
    tools = use.offered if use else ()
    in_text = ("tools" if tools else "tool_calls") not in template and (tools or conversation.needs_tools)
    calls = context.tool_format or plain_format()  # earlier calls may come to a model with an unknown format
    given = seen.turns

    def write() -> str:
        nonlocal given
        if use:
            check_text_length(context, use.characters, "tools")
        descriptions = [described(tool) for tool in tools]
        if context.vision is not None:
            given = defused_but(seen.last, given, context.vision.reserved)
            descriptions = defused(descriptions, context.vision.reserved)
        messages = context.late_system.folded(given)
        return context.renderer.render_chat(
            in_plain_text(messages, descriptions, calls) if in_text else messages,
            tools=() if in_text else descriptions,
            add_generation_prompt=chat.add_generation_prompt,
            arguments=chat.template_arguments,
        )

    try:
        text = await context.text.render(write)
    except ChatTemplateError as error:
        raise _template_refuses(f"The chat template rejects these messages: {error}", chat) from error
    except ChatTemplateUnavailable as error:
        raise template_unavailable(str(error)) from error
    if chat.continue_final:
        text = _cut_behind(text, given[-1]["content"], chat)
    texts = (each for index in seen.last for each in texts_of(seen.turns[index]["content"]))
    text = expanded(context, text, seen.pictures, chat.param, texts)
    check_text_length(context, len(prediction), "prediction")
    with context.text.admit(len(text) + len(prediction)) as turns:
        tokens = await encode(context, turns, text, chat.param, add_special_tokens=False)
        (prompt,) = await _with_tiles(context, turns, [Prompt(tokens, text)], seen.pictures, chat.param)
        expected = await _predicted(context, turns, prediction)
    if not tokens:
        raise _template_refuses(
            "The chat template renders these messages as an empty prompt. Send a message with content.", chat
        )
    return replace(prompt, prediction=expected, left_out=seen.left_out)


async def _with_tiles(
    context: ApiContext, turns: Turns, prompts: list[Prompt], pictures: Sequence[Picture], param: str
) -> list[Prompt]:
    """Return the prompts with the positions of the pictures' tiles; there are pictures only for a single prompt."""
    vision = context.vision
    if vision is None:
        return prompts

    def place() -> list[Prompt]:
        return [replace(each, images=placed(vision, each.tokens, pictures, param)) for each in prompts]

    return await turns.run(place)


async def _predicted(context: ApiContext, turns: Turns, prediction: str) -> Sequence[int]:
    """Return the tokens of the prediction, cut to the longest possible answer. Each token takes four bytes as long as
    the request lives."""
    if not prediction:
        return ()
    too_long = "the prediction has more than {} tokens. Shorten the prediction."
    tokens = await encode(context, turns, prediction, "prediction", add_special_tokens=False, too_long=too_long)
    return array("I", tokens[: context.limits.context_length])


def _cut_behind(text: str, content: Content, chat: Chat) -> str:
    """Return the rendered text up to the end of the last message: templates close it, and many strip it first."""
    last = parts_of(content)[-1]
    content = "" if is_image(last) else str(last["text"])
    said = content.strip()
    start = text.rfind(said) if said else -1
    if start < 0:
        raise _template_refuses(
            "The chat template changes the last message, so the message cannot be continued. "
            "Leave out 'continue_final_message'.",
            chat,
        )
    end = start + len(said)
    space = content[len(content.rstrip()) :]
    return text[: end + len(space) if text.startswith(space, end) else end]


def hidden_tokens(context: ApiContext, *, skip_special_tokens: bool) -> frozenset[int]:
    """Return the tokens that are not in an answer's text."""
    return context.tokenizer.hidden_token_ids if skip_special_tokens else frozenset()


def check_text_length(context: ApiContext, characters: int, param: str) -> None:
    """Raise `ApiError` for a text that is too long to fit for any tokenization."""
    limit = context.limits.context_length
    if characters > limit * _MAX_CHARACTERS_PER_TOKEN:
        raise context_length_exceeded(
            f"This model's maximum context length is {limit} tokens; a text of {characters} characters cannot fit. "
            "Shorten the text.",
            param,
            Overflow(characters // _MAX_CHARACTERS_PER_TOKEN + 1, limit),
        )


async def _plain(context: ApiContext, asked: Texts, given: Sequence[str], turns: Turns) -> list[Prompt]:
    """Return the prompts of texts that are neither cut nor filled in."""
    bos = context.tokenizer.bos_token_id
    hidden = frozenset[int]() if bos is None else frozenset((bos,))
    with _refusing(context, asked.param, _TOO_LONG):
        tokens = await turns.encode_all(given, max_tokens=context.limits.prompt_tokens)
    for each in tokens:
        check_length(each, asked.length, asked.param)
    return [Prompt(each, text, hidden) for each, text in zip(tokens, given, strict=True)]


async def _prompt(context: ApiContext, asked: Texts, given: str | list[int], turns: Turns, *, skip: bool) -> Prompt:
    if asked.suffix and isinstance(given, str):
        return await _filled_in(context, asked, given, turns)
    if isinstance(given, str):
        bos = context.tokenizer.bos_token_id
        hidden = frozenset[int]() if bos is None else frozenset((bos,))
        return Prompt(await cut_text(context, turns, given, asked.length), given, hidden)
    await turns.run(partial(check_token_ids, given, context.vocab_size, asked.param))
    if asked.length.cut is not None:
        return Prompt(cut_tokens(given, limit_of(context, asked.length), asked.length))
    check_length(given, asked.length, asked.param)
    text = await turns.decode(given, skip_special_tokens=skip) if asked.echo else ""
    return Prompt(given, text, hidden_tokens(context, skip_special_tokens=skip))


async def _filled_in(context: ApiContext, asked: Texts, prefix: str, turns: Turns) -> Prompt:
    fill_in = await turns.run(partial(fill_in_of, context.tokenizer))
    if fill_in is None:
        raise bad_request(
            "This model's tokenizer has no fill-in-the-middle tokens. Leave out 'suffix'.",
            "suffix",
            "suffix_unsupported",
        )
    before = await encode(context, turns, prefix, asked.param, add_special_tokens=False)
    behind = await encode(context, turns, asked.suffix, "suffix", add_special_tokens=False)
    return Prompt(fill_in.prompt(before, behind))


async def encode(
    context: ApiContext,
    turns: Turns,
    text: str,
    param: str,
    *,
    add_special_tokens: bool = True,
    too_long: str = _TOO_LONG,
) -> list[int]:
    """Return the token ids of a prompt. Raises `ApiError` with `too_long` for a prompt that exceeds the limit; the
    tokens of such a prompt are not counted to the end."""
    with _refusing(context, param, too_long):
        most = context.limits.prompt_tokens
        return await turns.encode(text, max_tokens=most, add_special_tokens=add_special_tokens)


@contextmanager
def _refusing(context: ApiContext, param: str, too_long: str) -> Iterator[None]:
    try:
        yield
    except TextTooLong as error:
        limit = context.limits.context_length
        message = f"This model's maximum context length is {limit} tokens, but {too_long.format(error.tokens)}"
        raise context_length_exceeded(message, param, Overflow(error.tokens, limit)) from error


def _template_refuses(message: str, chat: Chat) -> ApiError:
    return bad_request(message, chat.param, "chat_template_refused")
