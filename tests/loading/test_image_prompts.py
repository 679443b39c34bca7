"""Prompts with images have the ids that transformers' tokenizer gives to the text of its processors."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tokenizers
from numaserve.server.app.application import ApiContext
from numaserve.server.generation.prompts import render
from numaserve.server.generation.vision import Vision, special_text
from numaserve.server.images.decoder import ImageDecoder
from numaserve.server.images.expansion import EXPANSIONS
from numaserve.server.images.types import ImageLimits, Picture
from numaserve.server.scheduler.images import Tile
from numaserve.server.surfaces.openai.chats.chat_schema import ChatRequest
from numaserve.server.tokenizer.chat_template import ChatTemplate
from numaserve.server.tokenizer.tokenizer import Tokenizer
from numaserve.server.tokenizer.types import TokenizerError
from numaserve.workers.interface.images import ImageInput, Tiles
from transformers import PreTrainedTokenizerFast
from transformers.models.idefics3.processing_idefics3 import Idefics3Processor
from transformers.models.smolvlm import processing_smolvlm

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.tokenizer_builders import byte_level_backend

ROWS = 64
FAKE, GLOBAL, PLACEHOLDER = "<fake_token_around_image>", "<global-img>", "<image>"
_LISTS = (
    "{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == 'image' %}"
    "{{':'}}{% else %}{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}"
    "{{line['text']}}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
# As in the models' files. The first two take lists alone.
TEMPLATES = {
    "SmolVLM": "<|im_start|>" + _LISTS,
    "Idefics3": "<|begin_of_text|>" + _LISTS.replace("| capitalize", ".capitalize()").replace(" .", "."),
    "SmolVLM2": processing_smolvlm.DEFAULT_CHAT_TEMPLATE,
    "granite-docling": """{%- for message in messages -%}
{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'text' -%}
{{- part['text'] -}}
{%- elif part['type'] == 'image' -%}
{{- '<image>' -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|end_of_text|>
' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_of_role|>assistant' -}}
{%- if controls -%}{{- ' ' + controls | tojson() -}}{%- endif -%}
{{- '<|end_of_role|>' -}}
{%- endif -%}
""",
}
SPECIAL = (
    *("<|im_start|>", "<|begin_of_text|>", "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    *("<end_of_utterance>", FAKE, GLOBAL, PLACEHOLDER),
    *(f"<row_{row}_col_{col}>" for row in range(1, 5) for col in range(1, 5)),
)


def turn(role: str, *parts: str | tuple[int, int]) -> dict[str, Any]:
    """A turn of texts, and of images with these rows and columns."""
    return {
        "role": role,
        "content": [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image", "grid": part}
            for part in parts
        ],
    }


CONVERSATIONS = {
    "no image": [turn("system", "Be brief."), turn("user", "What is this? ")],
    "one tile": [turn("user", (0, 0), "What is this?")],
    "many tiles": [turn("system", "Be brief."), turn("user", " Describe:  ", (4, 3), "\n\nin detail")],
    "a history": [
        turn("user", (1, 2), "first", (0, 0), (2, 1)),
        turn("assistant", "Two cats <3."),
        turn("user", "And here?\n", (3, 4)),
    ],
}


@dataclass
class Decoder:
    """Decodes the rows and columns of an image."""

    limits: ImageLimits = ImageLimits(8, 1, 1, 1)  # noqa: RUF009 it is frozen

    def close(self) -> None:
        pass

    async def decode(self, encoded: Sequence[str], *_: object, whole: frozenset[int]) -> list[Picture]:
        grids = [tuple(map(int, text.split("+"))) for text in encoded]
        return [
            Picture(rows, cols, tuple(Tile(at, b"", 1, ROWS) for at in range(rows * cols + 1))) for rows, cols in grids
        ]


def backend() -> tokenizers.Tokenizer:
    made = byte_level_backend()
    made.add_special_tokens(list(SPECIAL))
    return made


def context_of(template: str) -> ApiContext:
    made = backend()
    chat_template = ChatTemplate(template)
    tokenizer = Tokenizer(
        made, eos_token_ids=frozenset(), bos_token_id=None, eos_token_id=None, chat_template=chat_template
    )
    settings = ImageInput(
        Tiles(8, 16, True, ROWS), 1, True, 1 / 255, (0.5,) * 3, (0.5,) * 3, made.token_to_id(PLACEHOLDER), "idefics3"
    )
    placeholder, decoder = special_text(settings.token, tokenizer), cast(ImageDecoder, Decoder())
    vision = Vision(settings, placeholder, decoder, EXPANSIONS[settings.text])
    return replace(make_context(FakeEngine(), context_length=8192), tokenizer=tokenizer, vision=vision)


def sent(turns: list[dict[str, Any]]) -> ChatRequest:
    """The request of a client."""

    def part(given: dict[str, Any]) -> dict[str, Any]:
        if given["type"] == "text":
            return given
        rows, cols = given["grid"]
        return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{rows}+{cols}"}}

    return ChatRequest.model_validate(
        {"messages": [{**each, "content": list(map(part, each["content"]))} for each in turns]}
    )


def expected(name: str, turns: list[dict[str, Any]]) -> list[int]:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend(), chat_template=TEMPLATES[name])
    before, *after = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True).split(PLACEHOLDER)
    grids = [part["grid"] for each in turns for part in each["content"] if part["type"] == "image"]
    images = [_of_smolvlm(*grid) if name.startswith("SmolVLM") else _of_idefics3(*grid) for grid in grids]
    text = before + "".join(image + rest for image, rest in zip(images, after, strict=True))
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def _of_smolvlm(rows: int, cols: int) -> str:
    return str(processing_smolvlm.get_image_prompt_string(rows, cols, ROWS, FAKE, PLACEHOLDER, GLOBAL))


def _of_idefics3(rows: int, cols: int) -> str:
    """The text of the processor's method, which needs no more of the processor than these texts."""
    texts = {"fake_image_token": FAKE, "global_image_tag": GLOBAL, "image_token": PLACEHOLDER, "image_seq_len": ROWS}
    processor = SimpleNamespace(**texts)
    return str(Idefics3Processor.replace_image_token(processor, {"rows": [[rows]], "cols": [[cols]]}, 0))


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("name", TEMPLATES)
async def test_the_ids_of_a_prompt_are_those_of_transformers(name: str, conversation: str) -> None:
    turns, context = CONVERSATIONS[conversation], context_of(TEMPLATES[name])
    try:
        prompt = await render(context, sent(turns).asked().input)  # type: ignore[arg-type]
    finally:
        context.close()
    assert prompt.tokens == expected(name, turns)
    assert context.vision is not None
    token = context.vision.settings.token
    starts = [at for at, each in enumerate(prompt.tokens) if each == token][::ROWS]
    assert [placed.start for placed in prompt.images] == starts


def test_a_token_of_texts_is_no_placeholder() -> None:
    context = context_of(TEMPLATES["SmolVLM2"])
    assert context.vision is not None
    tokenizer = cast(Tokenizer, context.tokenizer)
    texts = [at for at in range(400) if at not in tokenizer.special_token_ids]
    words = [at for at in texts if tokenizer.encode(tokenizer.token_text(at), add_special_tokens=False) == [at]]
    half = next(at for at in texts if at not in words)
    for token in (half, words[-1], 10**6):
        settings = replace(context.vision.settings, token=token)
        with pytest.raises(TokenizerError, match="no special token of the tokenizer"):
            special_text(settings.token, tokenizer)
    context.close()
