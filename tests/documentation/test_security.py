import ast
import re

import pytest

from tests.documentation.parts import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text()
ATTACKS = {
    cells[0].strip(): cells[2]
    for line in PAGE.partition("## Kinds of attack")[2].splitlines()
    if len(cells := line.strip("|").split("|")) == 3 and cells[0].strip() not in {"attack", "---"}
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_row_names_tests_that_there_are(attack: str) -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", ATTACKS[attack])
    assert named
    for file, test in named:
        tree = ast.parse((ROOT / "tests" / file).read_text())
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert test in functions, f"{file} has no {test}"


def test_every_row_was_found() -> None:
    assert len(ATTACKS) == len(re.findall(r"^\| [^|]+ \| [^|]+ \| `", PAGE, re.M)) >= 20
