"""Images by the `ollama` package for Python, which reads their files."""

from typing import Any

import ollama
from checks import MODEL, URL, check
from image_checks import INSTRUCTIONS, MAX_TOKENS, PAIRS, files, turns

client = ollama.Client(URL)
GREEDY = {"temperature": 0, "num_predict": MAX_TOKENS}


def user(colours: str) -> dict[str, Any]:
    return {"role": "user", "images": files(colours)}


@check("models")
def models() -> None:
    assert "vision" in client.show(MODEL).capabilities


@check("images")
def chat() -> None:
    for pair in PAIRS:
        messages = [{"role": "system", "content": INSTRUCTIONS}, *turns(pair, user)]
        assert client.chat(MODEL, messages, options=GREEDY).message.content == pair
