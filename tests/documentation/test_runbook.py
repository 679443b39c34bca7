import re
from typing import Any

import pytest
import yaml
from numaserve.server.metrics.kv_disk_figures import DiskFigures
from numaserve.server.metrics.metrics import Metrics

from tests.documentation.parts import ROOT

RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"]
    for rule in group["rules"]
}
ENTRIES = dict(re.findall(r"^### (\w+)\n(.*?)(?=^##|\Z)", (ROOT / "docs" / "operations.md").read_text(), re.M | re.S))


@pytest.fixture(scope="module")
def samples() -> dict[str, list[dict[str, str]]]:
    """The labels of each series that /metrics shows."""
    metrics = Metrics("m")
    metrics.worker(0, up=True, rss_bytes=0, misplaced_pages=0, state_bytes=0)
    metrics.kv_disk(DiskFigures())
    found: dict[str, list[dict[str, str]]] = {}
    for metric in metrics.registry.collect():
        for sample in metric.samples:
            found.setdefault(sample.name, []).append(sample.labels)
    return found


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_is_about_series_that_there_are(alert: str, samples: dict[str, list[dict[str, str]]]) -> None:
    series = re.findall(r"\b((?:numaserve|process)_\w+)(?:{([^}]*)})?", RULES[alert]["expr"])
    assert series or alert == "NumaserveDown"
    for name, selectors in series:
        assert name in samples
        wanted = dict(re.findall(r'(\w+)="([^"]*)"', selectors))
        wanted.pop("job", None)
        assert not wanted or any(wanted.items() <= labels.items() for labels in samples[name]), selectors


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_has_an_entry_that_says_what_to_do(alert: str) -> None:
    assert re.findall(r"^- (Means|Look at|Do): \S", ENTRIES[alert], re.M) == ["Means", "Look at", "Do"]
    named = {name.partition("{")[0] for name in re.findall(r"`(numaserve_\w+)`", ENTRIES[alert])}
    table = (ROOT / "docs" / "operations.md").read_text()
    assert all(f"| `{name}" in table for name in named)


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_has_a_summary_and_leads_to_its_entry(alert: str) -> None:
    annotations = RULES[alert]["annotations"]
    assert annotations.keys() == {"summary", "runbook"}
    assert "$labels.instance" in annotations["summary"], "it says which server"
    page, _, anchor = annotations["runbook"].partition("#")
    headings = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.M)
    assert anchor == alert.lower() and anchor in {re.sub(r"\W+", "-", heading.lower()) for heading in headings}


def test_every_entry_is_of_an_alert() -> None:
    assert {name for name in ENTRIES if name.startswith("Numaserve")} == set(RULES)


def test_prometheus_is_told_of_the_rules() -> None:
    assert yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["rule_files"] == ["alerts.yml"]
