"""CONTRIBUTING.md describes the targets of the Makefile, and no others."""

import re

from tests.documentation.parts import ROOT


def test_every_make_target_is_described_and_nothing_else() -> None:
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.M)
    assert phony
    described = re.findall(r"`make ([a-z][a-z-]*)[^`]*`", (ROOT / "CONTRIBUTING.md").read_text())
    assert {*described} == {*phony[1].split()}
