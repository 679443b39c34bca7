"""Rows that programs exchange with other code under names."""

import numpy as np
from driven_programs import RandomWeights, both, run, start, widened
from numaserve.kernels import Team
from numaserve.workers.program.setup import RankShape

from tests.support.recorded_programs import EPS, HIDDEN, VOCAB, Part


def test_a_program_has_several_rows_from_outside_and_for_it(team: Team) -> None:
    w = RandomWeights(team)
    b = Part(weights=w).builder(RankShape(HIDDEN, [0, VOCAB]))
    names = ["first", "second", "third"]
    normed = {name: b.rms_norm(b.given(name, HIDDEN), w.vector(), EPS) for name in names}
    for name, x in normed.items():
        b.keep(name, x)
        b.rms_norm(b.linear(x, w.matrix(HIDDEN, HIDDEN)), w.vector(), EPS)  # wants memory of the same size
    values = np.random.default_rng(0).standard_normal((len(names), 3, HIDDEN), np.float32)
    kept = []
    for program, outside in both(b, team):
        start(program, 0, [0])
        for name, rows in zip(names, values, strict=True):
            outside.given(name)[:3] = rows
        run(program, [(0, 0, [1, 2, 3], 0, ())])
        kept.append(np.stack([widened(outside.kept(name)[:3]) for name in names]))
    assert len({rows.tobytes() for rows in kept[0]}) == len(names)
    np.testing.assert_allclose(kept[0], kept[1], rtol=0.01)
