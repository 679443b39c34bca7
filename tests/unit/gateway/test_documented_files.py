"""The files of models that docs/several-models.md shows."""

import re
from pathlib import Path

from numaserve.server.gateway.models.models_file import read_models_file

PAGE = Path(__file__).parents[3] / "docs" / "several-models.md"


def test_each_can_be_read(tmp_path: Path) -> None:
    shown = re.findall(r"```yaml\n(models:.*?)```", PAGE.read_text(), re.DOTALL)
    files = []
    for number, text in enumerate(shown):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        files.append(read_models_file(path))
    demo, rag, tiny = files
    assert [each.place.cores for each in demo.models.values()] == [(0,), (1,)]
    assert [each.place.nodes for each in rag.models.values()] == [(0, 1, 2), (3,), (4,), (5,)]
    assert [each.place.cores for each in tiny.models.values()] == [(0,), (1,), (2,), (3,)]
    for four in (rag, tiny):
        assert [each.config.served_task for each in four.models.values()] == ["generate", "embed", "score", "generate"]
        assert all(each.place.pinned for each in four.models.values())
