"""docs/adding.md names files that exist, and has a chapter for each kind of change that touches several."""

import re

from tests.documentation.parts import ROOT

PAGE = (ROOT / "docs" / "adding.md").read_text()


def test_the_page_has_a_chapter_for_an_option_and_a_metric() -> None:
    assert {"An endpoint", "An option", "A metric"} <= {*re.findall(r"^## (.+)$", PAGE, re.MULTILINE)}


def test_the_chapter_of_a_family_names_each_table_of_rows() -> None:
    chapter = PAGE.partition("## A model family")[2].partition("\n## ")[0]
    sources = [file.read_text() for file in (ROOT / "tests" / "support" / "families").glob("*.py")]
    tables = {name for text in sources for name in re.findall(r"^([A-Z]+) = \{$", text, re.MULTILINE) if "Row(" in text}
    (step,) = re.findall(r"^\d\. Add a row to (.+?) in `tests/support/families/`", chapter, re.MULTILINE)
    assert {*re.findall(r"`(\w+)`", step)} == tables
    assert len(tables) == 4


def test_each_file_that_the_page_names_exists() -> None:
    folders = ("server", "workers", "kernels", "configs", "deploy", "docs", "tests")
    paths = {
        each for each in re.findall(r"`([\w./-]+)`", PAGE) if each.startswith(tuple(f"{name}/" for name in folders))
    }
    assert len(paths) > 50
    assert [path for path in sorted(paths) if "NAME" not in path and not (ROOT / path).exists()] == []
