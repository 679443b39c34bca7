"""Images by the `openai` package for Python, in chats and in responses."""

from typing import Any

import openai
from checks import MODEL, URL, check
from image_checks import INSTRUCTIONS, MAX_TOKENS, PAIRS, data_url, files, turns

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)


def of_chat(colours: str) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": data_url(file)}} for file in files(colours)]
    return {"role": "user", "content": parts}


def of_responses(colours: str) -> dict[str, Any]:
    parts = [{"type": "input_image", "image_url": data_url(file), "detail": "auto"} for file in files(colours)]
    return {"role": "user", "content": parts}


@check("images")
def chat() -> None:
    for pair in PAIRS:
        messages = [{"role": "system", "content": INSTRUCTIONS}, *turns(pair, of_chat)]
        answer = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=MAX_TOKENS, temperature=0)
        assert answer.choices[0].message.content == pair


@check("images")
def responses() -> None:
    for pair in PAIRS:
        answer = client.responses.create(
            model=MODEL,
            instructions=INSTRUCTIONS,
            input=turns(pair, of_responses),
            max_output_tokens=MAX_TOKENS,
            temperature=0,
        )
        assert answer.output_text == pair
