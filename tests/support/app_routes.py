"""The application's own routes, so that a test over all of them covers a route on the day it is added."""

import functools
from collections.abc import Sequence
from itertools import chain
from typing import Any
from unittest import mock

from fastapi import APIRouter
from fastapi.routing import APIRoute
from numaserve.server.app import application
from numaserve.server.app.application import ApiContext, create_app

from tests.support.api_fakes import FakeEngine, make_context


def routes_of(context: ApiContext) -> list[APIRoute]:
    """Return the routes of an application over `context`: FastAPI keeps those of included routers to itself."""
    found: list[APIRoute] = []

    def methods(routers: Sequence[APIRouter]) -> dict[str, str]:
        routes = chain.from_iterable(router.routes for router in routers)
        found.extend(each for each in routes if isinstance(each, APIRoute))
        return {}

    with mock.patch.object(application, "_methods", methods):
        create_app(context)
    return found


@functools.cache
def document(*keys: str) -> dict[str, Any]:
    """The OpenAPI document of a server with `keys`: one for all to read, as making it takes half a second.

    For tests, not for their parameters: each process that collects tests would make it.
    """
    return create_app(make_context(FakeEngine(), keys=keys)).openapi()


def operations(*keys: str) -> dict[tuple[str, str], dict[str, Any]]:
    """What the OpenAPI document of a server with `keys` says of each method and path."""
    paths = document(*keys)["paths"]
    return {(method.upper(), path): each for path, methods in paths.items() for method, each in methods.items()}


_ROUTES = {
    (method, route.path_format): route
    for route in routes_of(make_context(FakeEngine()))
    if route.include_in_schema
    for method in route.methods
}
DOCUMENTED = list(_ROUTES)
WITH_BODIES = [each for each, route in _ROUTES.items() if route.body_field is not None]
ROUTES = [*DOCUMENTED, ("GET", "/openapi.json"), ("GET", "/no/such/route"), ("OPTIONS", "/v1/models")]
