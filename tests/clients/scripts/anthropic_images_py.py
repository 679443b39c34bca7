"""Images by the `anthropic` package for Python."""

from pathlib import Path
from typing import Any

import anthropic
from checks import MODEL, URL, check
from image_checks import INSTRUCTIONS, MAX_TOKENS, PAIRS, encoded, files, turns

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=120)
GREEDY = {"extra_body": {"temperature": 0}}  # this version has no parameter for it


def block(file: Path) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(file)}}


def user(colours: str) -> dict[str, Any]:
    return {"role": "user", "content": [block(file) for file in files(colours)]}


@check("images")
def messages() -> None:
    for pair in PAIRS:
        asked = {"model": MODEL, "system": INSTRUCTIONS, "messages": turns(pair, user)}
        answer = client.messages.create(**asked, max_tokens=MAX_TOKENS, **GREEDY)
        assert answer.content[0].text == pair
        counted, usage = client.messages.count_tokens(**asked), answer.usage
        assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens
