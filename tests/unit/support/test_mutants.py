from pathlib import Path

import pytest

from tests.mutants.run import Tree
from tests.mutants.table import SHARES, Mutant, Sources, Stale, draw, read

ROOT = Path(__file__).parents[3]
MUTANT = Mutant("server/a.py", "x = 1", "x = 2")


def tree_of(root: Path, **files: str) -> Sources:
    """Return the sources of a new tree; a file's name is the part of its path after `server/`, without a suffix."""
    for name, text in files.items():
        path = root / "server" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Sources(root)


def test_every_mutant_of_the_table_is_found() -> None:
    sources = Sources(ROOT)
    rows = read()
    assert len({sources.place(row) for row in rows}) == len(rows) == sum(SHARES.values())
    assert [*draw(ROOT, rows, 0)] == rows  # each folder has its share


def test_a_line_is_found_where_it_has_moved(tmp_path: Path) -> None:
    moved = tree_of(tmp_path, a="y = 1\n", b="class C:\n    x = 1\n").place(MUTANT)
    assert (moved.file, moved.first) == ("server/b.py", 1)


def test_a_line_in_its_own_file_hides_others(tmp_path: Path) -> None:
    assert tree_of(tmp_path, a="\nx = 1\n", b="x = 1\n").place(MUTANT).file == "server/a.py"


@pytest.mark.parametrize("files", [{"a": "x = 3\n"}, {"a": "x = 1\nx = 1\n"}, {"b": "x = 1\n", "c": "x = 1\n"}])
def test_a_line_that_is_nowhere_or_in_several_places_is_stale(tmp_path: Path, files: dict[str, str]) -> None:
    with pytest.raises(Stale, match="x = 1"):
        tree_of(tmp_path, **files).place(MUTANT)


def test_a_line_in_several_places_is_drawn_with_the_lines_before_it(tmp_path: Path) -> None:
    tree_of(tmp_path, a="if a:\n    x += 1\nelse:\n    x += 1\n")
    drawn = next(draw(tmp_path, [], 0))
    assert len(drawn.was.split("\n")) == len(drawn.becomes.split("\n")) == 2


def test_the_mutant_is_in_the_tree_as_long_as_tests_run(tmp_path: Path) -> None:
    tree_of(tmp_path, a="def f():\n    x = 1\n")
    file = tmp_path / MUTANT.file
    with Tree(tmp_path, tmp_path).with_mutant(MUTANT) as built:
        assert built
        assert file.read_text() == "def f():\n    x = 2\n"
    assert file.read_text() == "def f():\n    x = 1\n"
