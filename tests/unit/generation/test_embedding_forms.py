import base64

import numpy as np
from numaserve.server.generation.embedding import in_form

VALUES = np.array([1, -1, 0, 2, -3, -4, -5, 6, 7, 8, 9, 10, -11, 12, 13, -14], np.float32)


def test_bits_are_the_signs_with_the_first_dimension_highest() -> None:
    expected = [0b10010001, 0b11110110]
    assert in_form(VALUES, "ubinary") == expected
    assert in_form(VALUES, "binary") == [each - 128 for each in expected]


def test_signed_bytes_reach_both_ends() -> None:
    assert in_form(np.ones(8, np.float32), "binary") == [127]
    assert in_form(-np.ones(8, np.float32), "binary") == [-128]


def test_base64_holds_little_endian_numbers() -> None:
    found = base64.b64decode(str(in_form(VALUES, "base64")))
    assert found == VALUES.astype("<f4").tobytes()
    assert in_form(VALUES, "float") == VALUES.tolist()
