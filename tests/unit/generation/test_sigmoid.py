"""The sigmoid of logits, also of very large ones."""

import numpy as np
import pytest
from numaserve.server.generation.classifier import activated, sigmoid


@pytest.mark.parametrize(
    ("logit", "expected"), [(0, 0.5), (-1000, 0), (1000, 1), (1, 0.7310585786300049), (-40, 4.248354255291589e-18)]
)
def test_a_sigmoid_neither_overflows_nor_loses_small_values(logit: float, expected: float) -> None:
    assert sigmoid(logit) == pytest.approx(expected, rel=1e-12)


def test_scores_are_sigmoids_of_logits() -> None:
    logits = np.array([[-2.0, 3.0], [0.5, -0.25]], np.float32)
    found = activated([each.tobytes() for each in logits], "sigmoid")
    assert found.tolist() == [[sigmoid(float(each)) for each in row] for row in logits]
