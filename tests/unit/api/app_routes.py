"""The application's own routes, so that a test over all of them covers a route on the day it is added."""

from __future__ import annotations

from api_fakes import FakeEngine, make_context
from numaserve.server.api.app import create_app


def _routes() -> list[tuple[str, str]]:
    schema = create_app(make_context(FakeEngine())).openapi()
    documented = [(method.upper(), path) for path, methods in schema["paths"].items() for method in methods]
    return [*documented, ("GET", "/openapi.json"), ("GET", "/no/such/route"), ("OPTIONS", "/v1/models")]


ROUTES = _routes()
