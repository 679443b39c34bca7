"""The table of docs/plan.md states the published figures of `configs/published`."""

import re

from numaserve.workers.bench.published import publications

from tests.documentation.parts import ROOT

# A row of an estimate, other rows of the same case, and the row that was measured.
_CASE = re.compile(
    r"^\| (?P<model>\S+) (?P<weights>\w+)[^|]*: estimate \|.*\n(?:\| the same .*\n)*"
    r"\| (?P<server>\w+), measured \| (?P<ttft>[\d.]+) \| +\| (?P<tpot>[\d.]+) \|",
    re.MULTILINE,
)


def test_the_page_has_the_figures_of_the_files() -> None:
    page = (ROOT / "docs" / "plan.md").read_text()
    stated = {
        (row["model"], row["weights"], row["server"], float(row["ttft"]), float(row["tpot"]))
        for row in _CASE.finditer(page)
    }
    files = {
        (model.name, each.weights, file.server, each.ttft_ms, each.tpot_ms)
        for file in publications()
        for model in file.models
        for each in model.figures
    }
    assert len(files) == page.count(", measured |")
    assert stated == files
