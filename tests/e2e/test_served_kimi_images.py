"""A server of Kimi K2.5 with its tower, asked over HTTP: from the file of an image to the probabilities of
transformers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers as hf
from PIL import Image

from tests.support import checkpoints, grid_vision, kimi_vision
from tests.support.image_chat import TEXT, TOP, ask, assert_answers_twice, assert_second_turn_finds, user
from tests.support.image_files import image_part, in_file, pattern
from tests.support.real_server import RealServer

TOLERANCE = 0.12  # of bf16: that of transformers is as far from fp32


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kimi_vision.save_served(checkpoints.build(kimi_vision.config()), tmp_path_factory.mktemp("kimi"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RealServer]:
    with RealServer("--image-memory-gib", "0.05", "--max-images", "4", model=str(folder)) as server:
        yield server


def of_transformers(folder: Path, images: list[Image.Image]) -> tuple[int, list[float]]:
    """The number of tokens of a prompt with a text and images, and the likeliest log-probabilities after it."""
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=kimi_vision.TEMPLATE
    )
    turns = [user(TEXT, *[{"type": "image"}] * len(images))]
    written = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    first, *rest = written.split(kimi_vision.PLACEHOLDER)
    pixels = [kimi_vision.fitted(image) for image in images]
    counts = [each.shape[0] * each.shape[1] // grid_vision.SQUARE**2 for each in pixels]
    text = first + "".join(kimi_vision.PLACEHOLDER * count + part for count, part in zip(counts, rest, strict=True))
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    model = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = model.eval()(ids, **kimi_vision.inputs_of(pixels)).logits[0, -1]
    top: list[float] = torch.log_softmax(logits, -1).topk(TOP).values.tolist()
    return ids.shape[1], top


@pytest.mark.parametrize("sizes", [[(50, 50)], [(300, 90), (20, 30)]], ids=str)
def test_images_give_the_probabilities_of_transformers(
    sizes: list[tuple[int, int]], folder: Path, server: RealServer
) -> None:
    images = [pattern(*size) for size in sizes]
    tokens, expected = of_transformers(folder, images)
    parts = [image_part(in_file(image)) for image in images]
    assert_answers_twice(server, [TEXT, *parts], tokens, expected, TOLERANCE)


def test_a_second_turn_finds_the_image(server: RealServer) -> None:
    assert_second_turn_finds(server, image_part(in_file(pattern(70, 110))), TEXT)


def test_few_details_have_fewer_tokens(server: RealServer) -> None:
    file = in_file(pattern(80, 80))
    high, low = (ask(server, user(image_part(file, detail=detail))) for detail in ("high", "low"))
    counts = [answer.json()["usage"]["prompt_tokens"] for answer in (high, low)]
    assert counts[0] - counts[1] == 100 - 64
