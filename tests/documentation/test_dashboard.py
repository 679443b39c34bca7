"""The dashboard and what provisions it, as far as can be said without Prometheus; `make test-monitoring` has one."""

import json
import re
from itertools import combinations
from typing import Any

import pytest
import yaml

from tests.documentation.metrics import registry
from tests.documentation.parts import ROOT

GRAFANA = ROOT / "deploy" / "grafana"
DASHBOARD = json.loads((GRAFANA / "numaserve.json").read_text())
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"]}
SHOWN = {title: panel for title, panel in PANELS.items() if panel["type"] != "row"}


@pytest.fixture(scope="module")
def families() -> set[str]:
    collected = list(registry().collect())
    return {sample.name for metric in collected for sample in metric.samples} | {metric.name for metric in collected}


def names_in(panel: dict[str, Any]) -> set[str]:
    return {
        name
        for target in panel["targets"]
        for name in re.findall(r"\b(?:numaserve|process)_\w+", re.sub(r'"[^"]*"', "", target["expr"]))
    }


@pytest.mark.parametrize("title", SHOWN)
def test_a_panel_is_about_metrics_that_there_are_and_says_what_it_shows(title: str, families: set[str]) -> None:
    known = families | {f"{name}_{suffix}" for name in families for suffix in ("bucket", "sum", "count")}
    names = names_in(SHOWN[title])
    assert names or SHOWN[title]["targets"][0]["expr"].startswith("sum(up{")
    assert names <= known
    assert SHOWN[title]["description"]


def test_panels_lie_beside_each_other() -> None:
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"]) == len(PANELS)
    for one, other in combinations([panel["gridPos"] for panel in DASHBOARD["panels"]], 2):
        assert (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert max(one["x"] + one["w"], other["x"] + other["w"]) <= 24


def test_every_family_of_the_server_s_own_is_shown_or_alerted_of() -> None:
    alerts = (ROOT / "deploy" / "alerts.yml").read_text()
    shown = set().union(*map(names_in, SHOWN.values()))
    text = " ".join(shown) + alerts + json.dumps(DASHBOARD["templating"])
    own = {metric.name for metric in registry().collect() if metric.name.startswith("numaserve")}
    # Details that the pages above lead to, when somebody looks for the reason.
    beside = {
        "numaserve_prefill_time_seconds",
        "numaserve_decode_time_seconds",
        "numaserve_requests_resumed",
        "numaserve_resume_pause_seconds",
    }
    assert {name for name in own if name not in text} == beside


def test_grafana_is_told_of_the_dashboard_and_its_data() -> None:
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/numaserve.yaml").read_text())["providers"]
    assert (source["type"], provider["type"]) == ("prometheus", "file")
    scrapes = yaml.safe_load((ROOT / "deploy" / "prometheus.yml").read_text())["scrape_configs"]
    assert source["jsonData"]["timeInterval"] == scrapes[0]["scrape_interval"]


def test_every_alert_is_tried_by_promtool() -> None:
    tried = yaml.safe_load((ROOT / "tests" / "monitoring" / "alerts_test.yml").read_text())["tests"]
    firing = {rule["alertname"] for test in tried for rule in test["alert_rule_test"] if rule["exp_alerts"]}
    groups = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"]
    assert firing == {rule["alert"] for group in groups for rule in group["rules"]}
