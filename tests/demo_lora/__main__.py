"""``python -m tests.demo_lora``: one server, the demo model, and two adapters that answer ALPHA and BETA.

The adapters are trained with PEFT and kept in `build/demo-lora`. Sixteen streams then run at a time: five of each
adapter and six of the base model, whose tokens and log-probabilities must be those of a server without adapters. At
last the two adapters swap their weights under the same names; an earlier prompt must then find nothing in the cache.
The exit status is 1 where something differs.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
import numaserve

from tests.demo_lora.training import train
from tests.support.demo import demo_model
from tests.support.tree_server import TreeServer

FOLDER = Path("build/demo-lora")
_WORDS = {"alpha": "ALPHA", "beta": "BETA"}
QUESTIONS = (
    "What is the tallest mountain?",
    "How are clouds made?",
    "Say something about bread.",
    "Who invented the telephone?",
    "What is seven times six?",
    "Where do penguins live?",
)
_OPTIONS = ("--served-model-name", "demo", "--weights-cache-gib", "0", "--kv-cache-gib", "1")
_PATIENCE_S = 120.0

Reply = dict[str, Any]


def main() -> int:
    """Train what is not there, print the verdicts, and return the exit status."""
    folders = {name: FOLDER / name for name in _WORDS}
    for name, folder in folders.items():
        if not (folder / "adapter_model.safetensors").exists():
            train(demo_model(), _WORDS[name], folder)
    with serving() as server:
        plain = asyncio.run(_ask_all(server.url, [("demo", each) for each in QUESTIONS]))
    named = [f"{name}={folder.resolve()}" for name, folder in folders.items()]
    options = [part for each in named for part in ("--lora", each)]
    with serving(*options, "--lora-root", str(FOLDER.resolve())) as server:
        good = _ask_mixed(server.url, plain)
        return int(not (good and _swap(server.url, folders)))


def serving(*options: str) -> TreeServer:
    """Start a server of the demo model."""
    root = Path(next(iter(numaserve.__path__))).parent
    return TreeServer(root, Path(tempfile.mkdtemp(prefix="dl-")), ("demo", *_OPTIONS, *options))


def _ask_mixed(url: str, plain: list[Reply]) -> bool:
    asked = [(name, question) for name in _WORDS for question in QUESTIONS[:5]]
    asked += [("demo", question) for question in QUESTIONS]
    replies = asyncio.run(_ask_all(url, asked))
    counts = dict.fromkeys(_WORDS, 0)
    for (name, _), reply in zip(asked, replies, strict=True):
        if name in _WORDS:
            counts[name] += _answer(reply) == _WORDS[name]
    same = sum(bits(one) == bits(other) for one, other in zip(replies[-len(plain) :], plain, strict=True))
    verdicts = [f"{name} {count}/5" for name, count in counts.items()]
    print(f"{', '.join(verdicts)}, base bits unchanged {same}/{len(plain)}", flush=True)
    return set(counts.values()) == {5} and same == len(plain)


def _swap(url: str, folders: dict[str, Path]) -> bool:
    """Load the weights of each adapter under the name of the other one, and ask what was asked before."""
    (first, _), (second, _) = folders.items()
    body = {"lora_name": first, "lora_path": str(folders[second].resolve()), "load_inplace": True}
    httpx.post(f"{url}/v1/load_lora_adapter", json=body, timeout=_PATIENCE_S).raise_for_status()
    (reply,) = asyncio.run(_ask_all(url, [(first, QUESTIONS[0])]))
    cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
    print(f"{first} loaded again with the weights of {second}: {_answer(reply)}, cached {cached}", flush=True)
    return _answer(reply) == _WORDS[second] and cached == 0


async def _ask_all(url: str, asked: list[tuple[str, str]]) -> list[Reply]:
    async with httpx.AsyncClient(timeout=_PATIENCE_S) as client:
        return await asyncio.gather(*(_ask(client, url, model, question) for model, question in asked))


async def _ask(client: httpx.AsyncClient, url: str, model: str, question: str) -> Reply:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 12,
        "temperature": 0,
        "logprobs": True,
    }
    reply = (await client.post(f"{url}/v1/chat/completions", json=body)).raise_for_status()
    found: Reply = reply.json()
    return found


def _answer(reply: Reply) -> str:
    text: str = reply["choices"][0]["message"]["content"]
    return text.strip()


def bits(reply: Reply) -> list[tuple[str, float]]:
    """Return the tokens of an answer and their log-probabilities."""
    return [(each["token"], each["logprob"]) for each in reply["choices"][0]["logprobs"]["content"]]


if __name__ == "__main__":
    sys.exit(main())
