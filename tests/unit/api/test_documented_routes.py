from __future__ import annotations

import re
from pathlib import Path

from api_fakes import FakeEngine, make_context
from numaserve.server.api.app import create_app

API = Path(__file__).parents[3] / "docs" / "api.md"


def test_the_documentation_names_every_route_and_none_that_does_not_exist() -> None:
    paths = create_app(make_context(FakeEngine())).openapi()["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    named = set(re.findall(r"`((?:GET|POST) /[^`]*)`", API.read_text()))
    assert named == routes | {"GET /openapi.json"}
