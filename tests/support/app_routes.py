"""The application's own routes, so that a test over all of them covers a route on the day it is added."""

from typing import Any

from numaserve.server.api.app import create_app

from tests.support.api_fakes import FakeEngine, make_context


def operations(*keys: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What the OpenAPI document of a server with `keys` says of each method and path."""
    paths = create_app(make_context(FakeEngine(), keys=keys)).openapi()["paths"]
    return {(method.upper(), path): each for path, methods in paths.items() for method, each in methods.items()}


DOCUMENTED = list(operations())
ROUTES = [*DOCUMENTED, ("GET", "/openapi.json"), ("GET", "/no/such/route"), ("OPTIONS", "/v1/models")]
