"""Streams are as the OpenAPI document describes them, and all that it describes is sent."""

import functools
import json
from collections.abc import Callable
from typing import Any

import jsonschema_rs
import pytest
from openapi_cases import EVENTS, LINES, client_of, schema_of, streams_of
from schemathesis.core.failures import FailureGroup
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from stream_cases import CASES, body_of, streaming_app

from tests.support.api_fakes import FakeEngine
from tests.support.app_routes import document

Schema = dict[str, Any]
# The last line of a stream is described as the whole answer without a stream is, which alone has these.
ONLY_WHOLE = {"ChatAnswer.logprobs", "GenerateAnswer.logprobs", "GenerateAnswer.thinking"}
PATHS = pytest.mark.parametrize("path", CASES)
SIZE = b"content-length"
# What is found first in an event and what is put there; and what the document of a route has whose events have it.
TAMPERINGS = {
    "another-field": (b'{"', b'{"undeclared":1,"', ""),
    "another-name": (b'":', b's":', ""),
    "another-type": (b'":"', b'":1,"s":"', ""),
    "another-event": (b"event: ", b"event: s", '"event"'),
    "another-end": (b"[DONE]", b"[END]", '"[DONE]"'),
}


@functools.cache
def streams() -> dict[str, list[Schema]]:
    return streams_of(document())


def described(path: str) -> str:
    return json.dumps(document()["paths"][path]["post"]["responses"]["200"]["content"])


@functools.cache
def served() -> tuple[FakeEngine, Any]:
    """The engine, and a schema whose components have no other fields than the listed ones: what the document leaves out
    is found."""
    engine = FakeEngine()
    app = streaming_app(engine)
    components = app.openapi()["components"]["schemas"]
    for name in reached(components, list(streams().values())):
        components[name].setdefault("additionalProperties", "properties" not in components[name])
    return engine, schema_of(app)


def reached(components: Schema, schema: object) -> set[str]:
    """The names of the components that `schema` refers to, also by way of others."""
    names: set[str] = set()
    waiting = [schema]
    while waiting:
        match waiting.pop():
            case {"$ref": str(reference)}:
                name = reference.rpartition("/")[2]
                waiting += [] if name in names else [components[name]]
                names.add(name)
            case dict(each):
                waiting += each.values()
            case list(each):
                waiting += each
    return names


def ask(path: str, name: str, around: Callable[[ASGIApp], ASGIApp] = lambda app: app) -> Any:
    """The response to a request, which is as documented; `around` may change what is sent."""
    case = CASES[path][name]
    engine, schema = served()
    vars(engine).update(vars(FakeEngine(reply=case.reply, **case.engine)))
    request = schema[path]["POST"].Case(body=body_of(path, case), media_type="application/json")
    return request.call_and_validate(session=client_of(around(schema.app)))


answer = functools.cache(ask)


@functools.cache
def values_of(path: str) -> list[Any]:
    """The JSON values that streams of `path` send."""
    lines = [line for name in CASES[path] for line in answer(path, name).content.splitlines()]
    return [json.loads(line) for line in (line.removeprefix(b"data: ") for line in lines) if line[:1] == b"{"]


def accepts(path: str, values: list[Schema], **changed: Schema) -> bool:
    """Whether `path` sends nothing but `values`; `changed` are other components than those of the document."""
    components = served()[1].raw_schema["components"]["schemas"] | changed
    known = {name: components[name] for name in reached(components, values)}
    validator = jsonschema_rs.validator_for({"anyOf": values or [False], "components": {"schemas": known}})
    return all(map(validator.is_valid, values_of(path)))


def without(component: Schema, field: str) -> Schema:
    """A component that does not have the field."""
    fields = {name: each for name, each in component["properties"].items() if name != field}
    required = [name for name in component.get("required", ()) if name != field]
    return component | {"properties": fields, "required": required}


def test_every_route_with_a_stream_is_asked() -> None:
    assert streams().keys() == CASES.keys()


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, cases in CASES.items() for name in cases])
def test_a_stream_is_as_documented(path: str, name: str) -> None:
    response = answer(path, name)
    assert response.status_code == 200
    [media_type] = response.headers["content-type"]
    assert media_type.startswith((EVENTS, LINES))


@PATHS
def test_every_documented_event_is_sent(path: str) -> None:
    assert accepts(path, streams()[path])
    for value in streams()[path]:
        assert not accepts(path, [each for each in streams()[path] if each is not value]), value


def test_every_documented_field_of_events_is_sent() -> None:
    components = served()[1].raw_schema["components"]["schemas"]
    paths: dict[str, list[str]] = {}
    for path, values in streams().items():
        for name in reached(components, values):
            paths.setdefault(name, []).append(path)

    def is_sent(name: str, field: str) -> bool:
        changed = {name: without(components[name], field)}
        return not all(accepts(path, streams()[path], **changed) for path in paths[name])

    fields = [(name, field) for name in paths for field in components[name]["properties"]]
    assert {f"{name}.{field}" for name, field in fields if not is_sent(name, field)} == ONLY_WHOLE


@pytest.mark.parametrize("tampering", TAMPERINGS)
def test_another_event_is_refused(tampering: str) -> None:
    found, put, having = TAMPERINGS[tampering]

    def around(app: ASGIApp) -> ASGIApp:
        async def tampered(scope: Scope, receive: Receive, send: Send) -> None:
            async def tamper(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message = message | {"headers": [each for each in message["headers"] if each[0] != SIZE]}
                else:
                    message = message | {"body": message["body"].replace(found, put, 1)}
                await send(message)

            await app(scope, receive, tamper)

        return tampered

    paths = [path for path in CASES if having in described(path)]
    assert paths
    for path in paths:
        with pytest.raises(FailureGroup, match="violates"):
            ask(path, next(iter(CASES[path])), around)
