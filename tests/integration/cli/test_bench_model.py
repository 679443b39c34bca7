"""The deployments that `numaserve bench offline` and `load` measure."""

import json
from pathlib import Path

from numaserve.server.cli.bench_model import deployments
from numaserve.workers.bench.shapes import SHAPES


def test_each_number_of_ranks_has_a_deployment(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SHAPES["tiny"].config()))
    made = list(deployments("tiny", tmp_path, (1, 2), {"context_length": 64}))
    assert [len(each.launches) for each in made] == [1, 2]
