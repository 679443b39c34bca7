"""A server of a model that sees, asked over HTTP: from the file of an image to the probabilities of transformers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import transformers as hf
from PIL import Image
from transformers.models.smolvlm import processing_smolvlm
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from tests.support import vision
from tests.support.image_chat import TEXT, TOP, ask, assert_answers_twice, likeliest, user
from tests.support.image_files import image_part, in_file, pattern
from tests.support.real_server import PATIENCE_S, RealServer

# The workers compute the parts of log-probabilities in bf16.
TOLERANCE = 0.02
# Sizes, and details: square, wide, high, and a single tile.
IMAGES = [((50, 50), "auto"), ((400, 90), "high"), ((88, 300), "auto"), ((200, 150), "low")]
LEFT_OUT = "X-Numaserve-Images-Left-Out"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of SmolVLM with a tokenizer, whose last token stands for images."""
    folder = tmp_path_factory.mktemp("smolvlm")
    torch.manual_seed(0)
    model = hf.AutoModelForImageTextToText.from_config(vision.CASES["smolvlm"]())
    return vision.save_served(model.to(torch.bfloat16), folder)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[RealServer]:
    server = RealServer("--backend", "reference", "--image-memory-gib", "0.05", "--max-images", "4", model=str(folder))
    yield server
    server.close()


def of_transformers(folder: Path, image: Image.Image, *, split: bool) -> tuple[int, list[float]]:
    """The number of tokens of a prompt with a text and the image, and the likeliest log-probabilities after it."""
    model = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    config = model.eval().config
    processor = SmolVLMImageProcessorPil.from_pretrained(folder, do_image_splitting=split)
    given = processor([[image]], return_tensors="pt", return_row_col_info=True)
    template = processing_smolvlm.DEFAULT_CHAT_TEMPLATE
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), chat_template=template)
    turns = [user(TEXT, {"type": "image"})]
    text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    rows = (config.vision_config.image_size // config.vision_config.patch_size // config.scale_factor) ** 2
    grid = given["rows"][0][0], given["cols"][0][0]
    shown = processing_smolvlm.get_image_prompt_string(*grid, rows, vision.FAKE, vision.PLACEHOLDER, vision.GLOBAL)
    ids = tokenizer(text.replace(vision.PLACEHOLDER, shown), add_special_tokens=False, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model(ids, pixel_values=given["pixel_values"]).logits[0, -1]
    top: list[float] = torch.log_softmax(logits, -1).topk(TOP).values.tolist()
    return ids.shape[1], top


@pytest.mark.parametrize(("size", "detail"), IMAGES)
def test_an_image_gives_the_probabilities_of_transformers(
    server: RealServer, folder: Path, size: tuple[int, int], detail: str
) -> None:
    image = pattern(*size)
    tokens, expected = of_transformers(folder, image, split=detail != "low")
    part = image_part(in_file(image), detail=detail)
    assert_answers_twice(server, [TEXT, part], tokens, expected, TOLERANCE)


def test_other_pixels_are_another_prompt(server: RealServer) -> None:
    red, blue = (in_file(Image.new("RGB", (300, 300), colour)) for colour in ("red", "blue"))
    first, other = (ask(server, user(image_part(file), TEXT)) for file in (red, blue))
    assert likeliest(first) != likeliest(other)
    assert other.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_damaged_image_is_refused_and_an_old_one_named(server: RealServer) -> None:
    damaged, good = image_part(in_file(pattern(50, 50))[:-40]), image_part(in_file(pattern(60, 60)), detail="low")
    refused = ask(server, user(TEXT, damaged))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_image"
    answer = ask(server, user(damaged), {"role": "assistant", "content": "a"}, user(good))
    likeliest(answer)
    assert answer.headers[LEFT_OUT] == '1, "messages[0].content[0]";reason=invalid_image'


@pytest.mark.parametrize("more", [{}, {"skip_special_tokens": True}, {"stream": True}], ids=str)
def test_tags_of_a_page_are_text(server: RealServer, folder: Path, more: dict[str, Any]) -> None:
    listed = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    bias = {str(each["id"]): 100 for each in listed if each["content"] in vision.TAGS}
    page = user(TEXT, image_part(in_file(pattern(60, 60)), detail="low"))
    body = {"messages": [page], "logit_bias": bias, "max_tokens": 8, "temperature": 0, **more}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    assert sum(map(answer.text.count, vision.TAGS)) == 8


def test_an_image_may_be_larger_than_the_texts_of_the_context(server: RealServer) -> None:
    noise = Image.effect_noise((1600, 1600), 100).convert("RGB")
    file = in_file(noise)
    assert len(file) > 2 << 20
    likeliest(ask(server, user(image_part(file, detail="low"))))
