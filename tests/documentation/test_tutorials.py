"""What the tutorials show is what docs/examples/ has, and the navigation has every page once."""

import ast
import re
import sys
import tomllib
from typing import Any

import pytest

from tests.documentation.parts import ROOT

DOCS = ROOT / "docs"
TUTORIALS = {page.name: page.read_text() for page in (DOCS / "tutorials").glob("*.md")}
DISTRIBUTIONS = {"PIL": "pillow"}  # of packages with other names
EXAMPLES = [path for path in (DOCS / "examples").iterdir() if path.is_file()]


@pytest.mark.parametrize("example", [path.name for path in EXAMPLES])
def test_a_tutorial_shows_the_whole_example(example: str) -> None:
    text = (DOCS / "examples" / example).read_text()
    language = {"py": "python", "yaml": "yaml"}[example.rpartition(".")[2]]
    assert any(f"```{language}\n{text}```\n" in page for page in TUTORIALS.values()), f"no tutorial shows {example}"


@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_tutorial_shows_no_program_that_is_not_an_example(tutorial: str) -> None:
    texts = [path.read_text() for path in EXAMPLES]
    assert all(block in texts for block in re.findall(r"```python\n(.*?)```\n", TUTORIALS[tutorial], re.DOTALL))


@pytest.mark.parametrize("tutorial", TUTORIALS)
def test_a_tutorial_installs_all_that_its_programs_import(tutorial: str) -> None:
    """The dependencies of a listed package do not count: its next version may have others."""
    page = TUTORIALS[tutorial]
    installed = {name for line in re.findall(r"pip install (.+)", page) for name in line.split()}
    programs = re.findall(r"```python\n(.*?)```\n", page, re.DOTALL)
    imported = {name for program in programs for name in _imported(program)}
    assert {DISTRIBUTIONS.get(name, name) for name in imported} - sys.stdlib_module_names <= installed


def _imported(program: str) -> set[str]:
    """Return the top packages that a program imports."""
    nodes = list(ast.walk(ast.parse(program)))
    modules = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    modules += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)]
    return {module.partition(".")[0] for module in modules}


def test_the_navigation_has_every_page_once() -> None:
    site = tomllib.loads((DOCS / "zensical.toml").read_text())
    named = sorted(_pages(site["project"]["nav"]))
    above = ["changelog.md", "contributing.md", "index.md"]
    pages = [page.relative_to(DOCS) for page in DOCS.glob("**/*.md")]
    assert named == sorted([*above, *map(str, pages)])


def _pages(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    parts = entry.values() if isinstance(entry, dict) else entry
    return [page for part in parts for page in _pages(part)]
