"""The application's own routes, so that a test over all of them covers a route on the day it is added."""

import functools
from typing import Any

from numaserve.server.app.application import create_app

from tests.support.api_fakes import FakeEngine, make_context


@functools.cache
def document(*keys: str) -> dict[str, Any]:
    """The OpenAPI document of a server with `keys`: one for all to read, as making it takes half a second."""
    return create_app(make_context(FakeEngine(), keys=keys)).openapi()


def operations(*keys: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What the OpenAPI document of a server with `keys` says of each method and path."""
    paths = document(*keys)["paths"]
    return {(method.upper(), path): each for path, methods in paths.items() for method, each in methods.items()}


DOCUMENTED = list(operations())
ROUTES = [*DOCUMENTED, ("GET", "/openapi.json"), ("GET", "/no/such/route"), ("OPTIONS", "/v1/models")]
