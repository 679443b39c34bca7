"""The values of pixels equal those of transformers' image processors, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest
from numaserve.workers.interface.images import Channels, Tiles

from tests.support.image_files import HALF, SETTINGS

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@pytest.mark.parametrize(
    ("rescale", "mean", "std"),
    [(1 / 255, HALF, HALF), (0.00392156862745098, IMAGENET_MEAN, IMAGENET_STD), (1 / 127.5, (1.0, 0.9, 1.1), HALF)],
)
def test_a_byte_has_the_value_that_transformers_computes(rescale: float, mean: Channels, std: Channels) -> None:
    from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

    processor = SmolVLMImageProcessorPil()
    bytes_of_channels = np.tile(np.arange(256, dtype=np.uint8), (3, 1))[:, None]
    expected = processor.normalize(processor.rescale(bytes_of_channels, rescale), mean, std)[:, 0]
    found = replace(SETTINGS, rescale=rescale, mean=mean, std=std).table()
    assert found.dtype == expected.dtype == np.float32
    assert found.tobytes() == expected.tobytes()


def test_the_digest_covers_every_setting() -> None:
    changed = {"sizes": Tiles(64, 384, False, 4), "resample": 3, "rescale": 1 / 256, "mean": IMAGENET_MEAN, "token": 7}
    digests = {replace(SETTINGS, **{name: value}).digest for name, value in changed.items()}
    assert len({SETTINGS.digest, *digests}) == 1 + len(changed)
    assert replace(SETTINGS).digest == SETTINGS.digest
