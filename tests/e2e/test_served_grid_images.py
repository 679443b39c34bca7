"""A server of a model that sees images of any size, asked over HTTP: from a file to the probabilities of
transformers."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers as hf
from PIL import Image

from tests.support import checkpoints, grid_vision
from tests.support.image_chat import TEXT, TOP, ask, assert_answers_twice, assert_second_turn_finds, user
from tests.support.image_files import image_part, in_file, pattern
from tests.support.real_server import RealServer

TOLERANCES = {"qwen3_vl": 0.03, "paddleocr_vl": 0.05}  # the workers compute in bf16
SIZES = [[(50, 50)], [(400, 90), (20, 30)], [(30, 60)]]


@dataclass
class Served:
    """A server, the folder of its model, the form of its images, and the tolerance of log-probabilities."""

    server: RealServer
    folder: Path
    form: grid_vision.Form
    tolerance: float


@pytest.fixture(scope="module", params=TOLERANCES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = checkpoints.build(grid_vision.CASES[request.param]())
    folder = grid_vision.save_served(model, tmp_path_factory.mktemp(request.param))
    limits = "--image-memory-gib", "0.05", "--max-images", "4", "--max-image-pixels", str(grid_vision.MOST)
    with RealServer(*limits, model=str(folder)) as server:
        yield Served(server, folder, grid_vision.form_of(model.config), TOLERANCES[request.param])


def of_transformers(served: Served, images: list[Image.Image]) -> tuple[int, list[float]]:
    """The number of tokens of a prompt with a text and images, and the likeliest log-probabilities after it."""
    model = hf.AutoModelForImageTextToText.from_pretrained(
        served.folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    form, file = served.form, str(served.folder / "tokenizer.json")
    given = form.processor_of()(images, return_tensors="pt")
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_file=file, chat_template=form.template)
    turns = [user(TEXT, *[{"type": "image"}] * len(images))]
    first, *rest = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True).split(
        form.placeholder
    )
    counts = (given["image_grid_thw"].prod(-1) // grid_vision.FACTOR**2).tolist()
    text = first + "".join(form.placeholder * count + part for count, part in zip(counts, rest, strict=True))
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model(ids, **given, mm_token_type_ids=(ids == grid_vision.IMAGE_TOKEN).int()).logits[0, -1]
    top: list[float] = torch.log_softmax(logits, -1).topk(TOP).values.tolist()
    return ids.shape[1], top


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_images_of_any_size_give_the_probabilities_of_transformers(
    served: Served, sizes: list[tuple[int, int]]
) -> None:
    images = [pattern(*size) for size in sizes]
    tokens, expected = of_transformers(served, images)
    parts = [image_part(in_file(image)) for image in images]
    assert_answers_twice(served.server, [TEXT, *parts], tokens, expected, served.tolerance)


def test_a_second_turn_finds_the_image(served: Served) -> None:
    assert_second_turn_finds(served.server, image_part(in_file(pattern(70, 110))), TEXT)


def test_few_details_have_the_fewest_tokens(served: Served) -> None:
    file = in_file(pattern(64, 64))
    high, low = (ask(served.server, user(image_part(file, detail=detail))) for detail in ("high", "low"))
    counts = [answer.json()["usage"]["prompt_tokens"] for answer in (high, low)]
    assert counts[0] - counts[1] == 64 - 4


@pytest.mark.parametrize(
    ("size", "says"),
    [
        ((900, 3), "300 times as long"),
        ((1, 16384), "16384 times as long as the other; the limit is 200. Crop the image"),
        (
            (3000, 16),
            "The model resizes it to 872 x 8, and the limit is 4096 pixels. Send an image whose edges differ less",
        ),
    ],
    ids=str,
)
def test_an_image_that_is_too_long_is_refused(served: Served, size: tuple[int, int], says: str) -> None:
    refused = ask(served.server, user(TEXT, image_part(in_file(pattern(*size)))))
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "invalid_image"
    assert says in refused.json()["error"]["message"]
