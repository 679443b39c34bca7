"""Claims of the documentation and the package that are easily outdated."""

import re
import tomllib

import pytest
from numaserve.server.cli.main import main

from tests.documentation.parts import ROOT

UI = "".join(path.read_text() for path in (ROOT / "server" / "ui").iterdir() if path.suffix in {".js", ".html"})


def test_the_page_has_every_control_that_its_description_names() -> None:
    named = re.findall(r"(?<!\*)\*([A-Z][a-z ]+)\*(?!\*)", (ROOT / "docs" / "views.md").read_text())
    assert len(named) >= 4
    assert [name for name in named if name not in UI] == []


def test_the_command_and_the_package_name_the_processors_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["description"]
    readme = (ROOT / "README.md").read_text().partition("\n\n![")[0]
    for text in (capsys.readouterr().out, package, readme):
        assert "Intel" in text and "AMD" in text
