"""Prompts with images, whose blocks only `extra_keys` distinguishes, before a reader of vLLM's and before Dynamo's."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx

from tests.demo_images.checkpoint import square, written
from tests.kv_readers.readers import Classes, Dynamo, prompt_of, until_right
from tests.support.image_files import image_part, in_file
from tests.support.kv_reader import Block, Prefix, Subscriber
from tests.support.real_server import PATIENCE_S, RealServer

_BEFORE, _AFTER = "Look at the square. " * 20, " Say which colour it has." * 20  # more than a block each


def check_images(vllm: ModuleType, python: Path) -> None:
    """Ask a server about two images in the same text.

    Raises where vLLM's classes, the module `vllm`, do not distinguish the images, or where Dynamo, in the environment
    of `python`, does not know the blocks of text before and after these events.
    """
    with tempfile.TemporaryDirectory(prefix="ns") as folder, ExitStack() as stack:
        addresses = (f"ipc://{folder}/events", f"ipc://{folder}/again")
        options = ("--tp", "1", "--threads-per-worker", "1", "--kv-cache-gib", "0.1")
        sockets = ("--kv-events", addresses[0], "--kv-events-replay", addresses[1])
        server = stack.enter_context(RealServer(*options, *sockets, model=str(written())))
        truth = stack.enter_context(closing(Subscriber(*addresses)))
        classes = stack.enter_context(closing(Classes("vllm, with images", vllm, [addresses])))
        dynamo = stack.enter_context(closing(Dynamo("dynamo, with images", python, [addresses])))

        def cached() -> list[set[Prefix]]:
            truth.catch_up()
            return [truth.index.prefixes()]

        for colour in ("red", "blue", "red"):
            _ask(server, [_text(_BEFORE), image_part(in_file(square(colour))), _text(_AFTER)])
        (with_images,) = cached()
        _ask(server, [_text(_AFTER)])  # a reader that knows this prompt has read all events before it
        (all_of_them,) = cached()
        until_right(classes, cached, [], "with images")
        until_right(dynamo, cached, sorted(all_of_them - with_images), "after prompts with images")
        blocks = _check_blocks(classes)
        longest = [each for each in with_images if not any(each == other[:-1] for other in with_images)]
        counts = _counts(dynamo, longest)
        print(f"images: vLLM's classes distinguish {blocks} blocks with two images; Dynamo counts {counts} blocks")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _ask(server: RealServer, content: list[dict[str, Any]]) -> None:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1}
    httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE_S).raise_for_status()


def _check_blocks(classes: Classes) -> int:
    """Return the number of blocks with images, by the classes' view of the server."""
    (prefixes,) = classes.prefixes()
    blocks = [prefix[-1] for prefix in prefixes if _keys(prefix[-1])]
    hashes = {digest for block in blocks for digest, _ in _keys(block)}
    assert len(hashes) == 2, f"{hashes} are the hashes of two images"
    assert all(len(each) == 64 and int(each, 16) >= 0 for each in hashes), hashes
    texts = {(_tokens(block), start) for block in blocks for _, start in _keys(block)}
    assert len(texts) * 2 == len(blocks), "the two prompts differ in more than the image"
    placeholders = {tokens[start] for tokens, start in texts}
    assert len(placeholders) == 1, f"{placeholders} are at the positions of images"
    return len(blocks)


def _counts(dynamo: Dynamo, prefixes: list[Prefix]) -> list[int]:
    """Return the numbers of blocks that Dynamo counts for prompts with images, given their placeholders alone.

    Dynamo reads only hashes that its own front end has given to images, and takes one image for another: it may count
    more than the text before the image.
    """
    assert len(prefixes) == 2, f"{len(prefixes)} prompts are cached in place of two"
    told = [each["blocks"][0] for each in dynamo.about([prompt_of(tuple(map(_tokens, each))) for each in prefixes])]
    for prefix, count in zip(prefixes, told, strict=True):
        before = next(index for index, block in enumerate(prefix) if _keys(block))
        assert 0 < before < len(prefix) - 1, "an image must lie between blocks of text"
        assert count >= before, f"{before} blocks of text are before the image, and {count} are known"
    return told


def _keys(block: Block) -> list[tuple[str, int]]:
    return [each for each in block if isinstance(each, tuple)]


def _tokens(block: Block) -> tuple[int, ...]:
    return tuple(each for each in block if isinstance(each, int))
