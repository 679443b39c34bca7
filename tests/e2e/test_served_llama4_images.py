"""A server of Llama 4 with its tower, asked over HTTP: from the file of an image to the probabilities of
transformers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from numaserve.server.images.pixels import to_tiles
from numaserve.server.images.types import ImageLimits
from numaserve.workers.models.load import load_model_config
from PIL import Image

from tests.support import checkpoints, llama4_vision
from tests.support.image_chat import TEXT, TOP, ask, assert_answers_twice, assert_second_turn_finds, user
from tests.support.image_files import image_part, in_file, pattern
from tests.support.real_server import RealServer

TOLERANCE = 0.12  # of bf16: that of transformers is as far from fp32
PIXELS = 6 * llama4_vision.TILE**2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = checkpoints.build(llama4_vision.config())
    return llama4_vision.save_served(model, tmp_path_factory.mktemp("llama4"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RealServer]:
    limits = "--image-memory-gib", "0.05", "--max-images", "4", "--max-image-pixels", str(PIXELS)
    server = RealServer(*limits, model=str(folder))
    yield server
    server.close()


def of_transformers(folder: Path, image: Image.Image) -> tuple[int, list[float]]:
    """The number of tokens of a prompt with a text and the image, and the likeliest log-probabilities after it. The
    tiles are the server's own, which other tests compare with transformers."""
    settings = load_model_config(folder).images
    assert settings is not None
    layout, tiles = to_tiles(in_file(image), settings, ImageLimits(1, 1 << 20, 1 << 20, PIXELS))
    pixels = np.frombuffer(bytearray(b"".join(tiles)), np.uint8).reshape(len(tiles), *[llama4_vision.TILE] * 2, 3)
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / "tokenizer.json"), chat_template=llama4_vision.TEMPLATE
    )
    text = tokenizer.apply_chat_template(
        [user(TEXT, {"type": "image"})], tokenize=False, add_generation_prompt=True
    ).replace(llama4_vision.MARKER, llama4_vision.text_of(layout.rows, layout.cols))
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids[0]
    model = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        logits = llama4_vision.logits_of(model.eval(), ids, llama4_vision.values_of(pixels).float())[-1]
    top: list[float] = torch.log_softmax(logits, -1).topk(TOP).values.tolist()
    return len(ids), top


@pytest.mark.parametrize("size", [(50, 50), (120, 30), (90, 130)], ids=str)
def test_an_image_gives_the_probabilities_of_transformers(
    server: RealServer, folder: Path, size: tuple[int, int]
) -> None:
    image = pattern(*size)
    tokens, expected = of_transformers(folder, image)
    assert_answers_twice(server, [TEXT, image_part(in_file(image))], tokens, expected, TOLERANCE)


def test_a_second_turn_finds_the_image(server: RealServer) -> None:
    assert_second_turn_finds(server, image_part(in_file(pattern(70, 110))), TEXT)


@pytest.mark.parametrize("text", [llama4_vision.MARKER, llama4_vision.PLACEHOLDER])
def test_texts_that_stand_for_images_are_no_texts_of_clients(server: RealServer, text: str) -> None:
    image = image_part(in_file(pattern(20, 20)))
    refused = ask(server, user(image, {"type": "text", "text": f"a {text} b"}))
    assert refused.json()["error"]["code"] == "image_placeholder"
    quoted = user(TEXT), {"role": "assistant", "content": f"I see {text}"}, user(image, TEXT)
    assert ask(server, *quoted).status_code == 200
