"""Servers of Gemma 3 and 4, asked about images over HTTP: from a file to the probabilities of transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from numaserve.workers.interface.protocol import PAGE_SIZE
from PIL import Image

from tests.support import checkpoints, gemma4_vision, gemma_vision
from tests.support.image_chat import TEXT, TOP, ask, assert_answers_twice, assert_second_turn_finds, user
from tests.support.image_files import image_part, in_file, pattern
from tests.support.real_server import RealServer

TOLERANCE = 0.03  # the workers compute in bf16
# A page or more: what is found of a prompt does not end within an image.
AFTER = {"type": "text", "text": "hi" * PAGE_SIZE}
SIZES = {
    "gemma3": [[(50, 50)], [(200, 90), (20, 30)]],
    "gemma4-inputs": [[(50, 50)]],
    "gemma4-whole": [[(300, 40)]],
    "gemma4-unified": [[(40, 70)]],
}
Served = tuple[str, Path, RealServer]


@pytest.fixture(scope="module", params=SIZES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    case, folder = request.param, tmp_path_factory.mktemp(request.param)
    if case == "gemma3":
        gemma_vision.save_served(checkpoints.build(gemma_vision.CASES[case]()), folder)
    else:
        gemma4_vision.save_served(gemma4_vision.build(case), folder)
    server = RealServer("--image-memory-gib", "0.05", "--max-images", "4", model=str(folder))
    yield case, folder, server
    server.close()


def expanded_of(case: str, images: list[Image.Image], folder: Path) -> tuple[dict[str, Any], list[str], str]:
    """The inputs that transformers' processor makes of images, the text of each, and the mark of a template."""
    if case == "gemma3":
        config = hf.AutoConfig.from_pretrained(folder)
        made = gemma_vision.processor_of(config.vision_config.image_size)(images, return_tensors="pt")
        rows = gemma_vision.PLACEHOLDER * gemma_vision.features_of(config)
        text = f"\n\n{gemma_vision.BEGINS}{rows}{gemma_vision.ENDS}\n\n"
        return {"pixel_values": made["pixel_values"]}, [text] * len(images), gemma_vision.BEGINS
    made = gemma4_vision.processed(hf.AutoConfig.from_pretrained(folder), images)
    texts = [
        f"{gemma4_vision.BEGINS}{gemma4_vision.PLACEHOLDER * int(count)}{gemma4_vision.ENDS}"
        for count in made["num_soft_tokens_per_image"]
    ]
    given = {name: made[name] for name in ("pixel_values", "image_position_ids")}
    return given, texts, gemma4_vision.PLACEHOLDER


def of_transformers(case: str, folder: Path, images: list[Image.Image]) -> tuple[int, list[float]]:
    """The number of tokens of a prompt with a text and images, and the likeliest log-probabilities after it."""
    model = hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    given, texts, mark = expanded_of(case, images, folder)
    template = (gemma_vision if case == "gemma3" else gemma4_vision).TEMPLATE
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), chat_template=template)
    turns = [user(TEXT, *[{"type": "image"}] * len(images), AFTER)]
    first, *rest = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True).split(mark)
    text = first + "".join(image + part for image, part in zip(texts, rest, strict=True))
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    types = (ids == gemma_vision.IMAGE_TOKEN).int()
    kind = "token_type_ids" if case == "gemma3" else "mm_token_type_ids"
    with torch.no_grad():
        logits = gemma4_vision.logits_of(model.eval(), ids, {**given, kind: types})[-1]
    top: list[float] = torch.log_softmax(logits, -1).topk(TOP).values.tolist()
    return ids.shape[1], top


def test_images_give_the_probabilities_of_transformers(served: Served) -> None:
    case, folder, server = served
    for sizes in SIZES[case]:
        images = [pattern(*size) for size in sizes]
        tokens, expected = of_transformers(case, folder, images)
        parts = [image_part(in_file(image)) for image in images]
        assert_answers_twice(server, [TEXT, *parts, AFTER], tokens, expected, TOLERANCE)


def test_a_second_turn_finds_the_image(served: Served) -> None:
    _, _, server = served
    assert_second_turn_finds(server, TEXT, image_part(in_file(pattern(70, 110))), AFTER)


def test_texts_that_stand_for_images_are_refused(served: Served) -> None:
    case, _, server = served
    module: Any = gemma_vision if case == "gemma3" else gemma4_vision
    for text in {module.PLACEHOLDER, gemma_vision.BEGINS if case == "gemma3" else module.PLACEHOLDER}:
        refused = ask(server, user({"type": "text", "text": f"a {text} b"}))
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "image_placeholder")
