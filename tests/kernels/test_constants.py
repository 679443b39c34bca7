"""What Python and C++ both say, where Python may not import the kernels: it is the same."""

from collections.abc import Sequence

import numpy as np
import pytest
from numaserve.kernels import _native
from numaserve.workers.interface import protocol
from numaserve.workers.models import gpt_oss
from numaserve.workers.models.config import experts, huggingface, latent
from numaserve.workers.program import buffers, caches, handles
from numaserve.workers.program.ops import exchange

SAME: dict[str, Sequence[object]] = {
    "PAD": [buffers.PAD, handles.MATRIX_PAD],
    "TILE_ROWS": [buffers.ACTIVATION_TILE_ROWS],
    "TILE_COLUMNS": [latent._TILE, handles.TILE_COLUMNS],
    "INT8_TILE_COLUMNS": [handles.INT8_TILE_COLUMNS],
    "CACHE_LINE": [buffers.CACHE_LINE],
    "GROUP_SCALE_BYTES": [buffers.GROUP_SCALE_BYTES],
    "PAGE_TOKENS": [protocol.PAGE_SIZE],
    "ATTENTION_BLOCK": [buffers.ATTENTION_BLOCK],
    "ATTENTION_ROWS": [buffers.ATTENTION_ROWS],
    "PARTIAL_SEQUENCES": [buffers.CUT_SEQUENCES],
    "PARTIAL_EXTRA": [buffers.PARTIAL_EXTRA],
    "SCALE_COLUMNS": [caches.SCALE_COLUMNS],
    "MAX_HEAD_DIM": [huggingface._MAX_HEAD_DIM, latent._MAX_LATENT],
    "MAX_LATENT_DIM": [latent._MAX_CACHED],
    "MAX_KEY_DIM": [caches.MAX_KEY_DIM],
    "MAX_CONV_TAPS": [caches.MAX_CONV_TAPS],
    "MAX_EXPERTS": [experts._MAX_EXPERTS],
    "MAX_TOP_K": [experts._MAX_TOP_K],
    "MAX_MASKED_DRAFTS": [protocol.MAX_MASKED_DRAFTS],
    "MAX_LOGPROBS": [protocol.MAX_LOGPROBS],
    "ONE_SHOT_BYTES": [exchange._ONE_SHOT_BYTES],
    "OVERLAPPED_ROWS": [exchange._OVERLAPPED_ROWS],
    "PIECE_COLUMNS": [exchange._PIECE_COLUMNS],
    "ROW_BLOCK": [exchange._ROW_BLOCK],
}


@pytest.mark.parametrize("name", SAME)
def test_a_constant_is_the_same_on_both_sides(name: str) -> None:
    assert all(value == getattr(_native, name) for value in SAME[name])


def test_the_gain_of_a_sigmoid_is_the_same_in_fp32() -> None:
    assert np.float32(gpt_oss._SIGMOID_GAIN) == np.float32(_native.SIGMOID_GAIN)
