"""Servers of models with Pixtral's tower, asked over HTTP: from a file to the probabilities of transformers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers as hf
from numaserve.workers.interface.protocol import PAGE_SIZE
from PIL import Image

from tests.support import checkpoints, pixtral
from tests.support.grid_vision import SQUARE
from tests.support.image_chat import TEXT, TOP, ask, assert_answers_twice, likeliest, user
from tests.support.image_files import image_part, in_file, pattern
from tests.support.real_server import RealServer

TOLERANCE = 0.12  # of bf16: that of transformers is as far from fp32
PIXELS = 64 * SQUARE**2  # fewer than the longest edge allows


@dataclass
class Served:
    """A server, and the folder of its model."""

    server: RealServer
    folder: Path


@pytest.fixture(scope="module", params=["mistral3", "pixtral"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = checkpoints.build(pixtral.CASES[request.param]())
    folder = pixtral.save_served(model, tmp_path_factory.mktemp(request.param))
    limits = "--image-memory-gib", "0.05", "--max-images", "4", "--max-image-pixels", str(PIXELS)
    server = RealServer(*limits, model=str(folder))
    yield Served(server, folder)
    server.close()


def of_transformers(folder: Path, images: list[Image.Image]) -> tuple[int, list[float]]:
    """The number of tokens of a prompt with a text and images, and the likeliest log-probabilities after it."""
    model = hf.AutoModelForImageTextToText.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    given = pixtral.processor_of(model.config)(images, return_tensors="pt")
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=pixtral.TEMPLATE, eos_token=pixtral.EOS
    )
    turns = [user(TEXT, *[{"type": "image"}] * len(images))]
    first, *rest = tokenizer.apply_chat_template(turns, tokenize=False).split(pixtral.PLACEHOLDER)
    grids = [(height // SQUARE, width // SQUARE) for height, width in given["image_sizes"].tolist()]
    text = first + "".join(pixtral.text_of(*grid) + part for grid, part in zip(grids, rest, strict=True))
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model(ids, **given).logits[0, -1]
    top: list[float] = torch.log_softmax(logits, -1).topk(TOP).values.tolist()
    return ids.shape[1], top


@pytest.mark.parametrize("sizes", [[(50, 50)], [(300, 90), (20, 30)], [(30, 60)]], ids=str)
def test_images_give_the_probabilities_of_transformers(served: Served, sizes: list[tuple[int, int]]) -> None:
    images = [pattern(*size) for size in sizes]
    tokens, expected = of_transformers(served.folder, images)
    parts = [image_part(in_file(image)) for image in images]
    assert_answers_twice(served.server, [TEXT, *parts], tokens, expected, TOLERANCE)


def test_a_second_turn_finds_the_image(served: Served) -> None:
    image = image_part(in_file(pattern(56, 62)))
    first = ask(served.server, user(image, TEXT), tokens=4)
    answer = first.json()["choices"][0]["message"]["content"] or "a"
    turns = user(image, TEXT), {"role": "assistant", "content": answer}, user(TEXT)
    second, again = (ask(served.server, *turns) for _ in range(2))
    assert second.status_code == 200, second.text
    assert second.json()["usage"]["prompt_tokens_details"]["cached_tokens"] >= PAGE_SIZE
    assert likeliest(second) == likeliest(again)


def test_large_images_are_bounded_by_the_server_s_limit_of_pixels(served: Served) -> None:
    counts = [
        ask(served.server, user(image_part(in_file(pattern(*size), **more)))).json()["usage"]["prompt_tokens"]
        for size, more in (((900, 900), {}), ((64, 64), {}), ((9000, 1), {}))
    ]
    # A token after each row of features, and two around the turn.
    assert counts == [8 * 9 + 2, 8 * 9 + 2, 10 + 1 + 2]
