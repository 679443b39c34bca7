from math import log1p

import numpy as np
from numaserve.server.generation.sparse import SparseOutput
from numaserve.workers.interface.vectors import SparseEntries


def test_weights_are_logarithms_of_the_positive_values() -> None:
    encoded = SparseEntries.of_vector(np.array([0.5, 0, -2, 7], np.float32)).encoded()
    assert list(SparseOutput(1).weights(encoded)) == [(0, np.float32(log1p(0.5))), (3, np.float32(log1p(7)))]
    assert list(SparseOutput(2).weights(encoded)) == [
        (0, np.float32(log1p(log1p(0.5)))),
        (3, np.float32(log1p(log1p(7)))),
    ]
    assert list(SparseOutput(left_out=frozenset({0, 2})).weights(encoded)) == [(3, 7.0)]
    assert list(SparseOutput(1).weights(SparseEntries.of_vector(np.zeros(9, np.float32)).encoded())) == []
