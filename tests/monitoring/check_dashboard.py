"""The dashboard by the types that Grafana publishes: Grafana itself is in none of the registries that tests use."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import node_modules_with

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "numaserve.json"
TYPES = Path(__file__).with_name("dashboard_types.ts")
ENVIRONMENT = ROOT / "build" / "monitoring"
PACKAGES = {"@grafana/schema": "13.2.3", "typescript": "5.9.3"}
# Types of the packages themselves are not looked at.
OPTIONS = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022")


@pytest.fixture(scope="module")
def mistakes() -> Callable[[Any], str]:
    """What the type checker says of a dashboard."""
    assert shutil.which("npm"), "install Node.js with npm (on Debian: apt-get install npm)"
    node_modules_with(PACKAGES, ENVIRONMENT)
    program = ENVIRONMENT / "dashboard.ts"

    def mistakes(dashboard: Any) -> str:
        program.write_text(f"{TYPES.read_text()}{json.dumps(dashboard, indent=1)};\n")
        command = [str(ENVIRONMENT / "node_modules" / ".bin" / "tsc"), *OPTIONS, str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (not done.stdout), done.stderr
        return done.stdout

    return mistakes


def test_the_dashboard_is_one_by_grafana_s_types(mistakes: Callable[[Any], str]) -> None:
    assert mistakes(json.loads(DASHBOARD.read_text())) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('"graphMode": "area"', '"graphMode": "surface"'),
        ('"textMode": "auto"', '"textMod": "auto"'),
        ('"fillOpacity"', '"fillOpacities"'),
        ('"placement": "bottom"', '"placement": "below"'),
        ('"refresh": 2', '"refresh": 5'),
        ('"gridPos": {"x": 0', '"gridPos": {"x": "0"'),
        ('"type": "timeseries"', '"type": "graph"'),
    ],
)
def test_a_dashboard_that_is_wrong_would_be_found(mistakes: Callable[[Any], str], right: str, wrong: str) -> None:
    assert right in DASHBOARD.read_text()
    assert "error" in mistakes(json.loads(DASHBOARD.read_text().replace(right, wrong, 1)))
