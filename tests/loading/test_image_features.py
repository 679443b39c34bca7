"""Features of tiles, on one to three ranks of the reference, next to those of transformers."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from numaserve.kernels import Team
from numaserve.workers.program.reference.numbers import Numbers

from tests.support import checkpoints, vision
from tests.support.image_features import of_ranks
from tests.support.loaded import load_part

Floats = npt.NDArray[np.float32]
EXACT = Numbers(torch.float64, rounded=False)
TILES = 2
ALLOWED = 1.1


def of_transformers(folder: Path, values: Floats, dtype: torch.dtype) -> Floats:
    """The features of tiles, fp32 [tiles * rows, hidden], of values [tiles, 3, side, side]."""
    model = checkpoints.hf.AutoModelForImageTextToText.from_pretrained(folder, dtype=dtype).eval()
    with torch.no_grad():
        (features,) = model.get_image_features(torch.from_numpy(values)[None]).pooler_output
    return features.float().numpy()


@pytest.mark.parametrize("case", vision.CASES)
def test_one_to_three_ranks_are_as_close_to_fp32_as_transformers_in_bf16(case: str, tmp_path: Path, team: Team) -> None:
    model = checkpoints.build(vision.CASES[case]())
    folder = vision.save(model, tmp_path)
    values = vision.values_of(vision.random_tiles(model.config, TILES))
    wide = of_transformers(folder, values, torch.float32)
    yardstick = np.abs(of_transformers(folder, values, torch.bfloat16) - wide).mean()
    for tp in (1, 2, 3):
        group = [load_part(folder, team, [1] * tp, rank) for rank in range(tp)]
        exact, rounded = of_ranks(group, values, EXACT), of_ranks(group, values)
        for rank in range(tp):
            # Features are rounded to bf16, a few of them to the other side than those of transformers in fp32.
            assert (exact[rank] != torch.from_numpy(wide).bfloat16().float().numpy()).mean() < 0.01, tp
            np.testing.assert_array_equal(rounded[rank], rounded[0])
        assert np.abs(rounded[0] - wide).mean() <= ALLOWED * yardstick, tp
