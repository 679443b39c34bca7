"""Random requests made from the OpenAPI document, and how they are judged."""

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any
from zlib import crc32

import schemathesis
from fastapi import FastAPI
from hypothesis import HealthCheck, settings
from numaserve.server.app.application import create_app
from numaserve.server.http.errors import ApiError
from numaserve.server.http.fields.media import takes_no
from schemathesis.config import SchemathesisConfig
from schemathesis.generation import GenerationMode
from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, HypothesisTestMode, create_test
from schemathesis.python.asgi import ASGIClient, get_client

from tests.support.api_fakes import MODEL, FakeEngine, make_context
from tests.support.error_forms import note_errors

# What JSON Schema cannot say: rules between fields, names that are nearly a field's, and what the model, its vocabulary
# and its context allow.
BEYOND_THE_SCHEMA = {
    "conflicting_fields",
    "unknown_parameter",
    "context_length_exceeded",
    "token_unknown",
    "too_many_sequences",
    "empty_prompt",
    "suffix_unsupported",
    "tools_unsupported",
    "chat_template_refused",
    "unsupported_grammar",
    "task_unsupported",
    "prompt_unknown",
    "too_many_dimensions",
    "dimensions_unpacked",
    "limit_too_small",
    "previous_response_not_found",
    "item_not_found",
}
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
_LONG = 1000
_MOST_EVENTS = 10**6
_CONFIG = {
    "max-stream-events": _MOST_EVENTS,
    "checks": {
        # Judged by `judge`, which knows the codes.
        "positive_data_acceptance": {"enabled": False},
        # A body that is too long is refused before it is looked into.
        "negative_data_rejection": {"expected-statuses": ["400", "401", "403", "404", "405", "409", "413", "429"]},
    },
}


def long_lists_within(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """The lists with bounds of thousands that messages, blocks and items have: in which description and field, and what
    is said of each.

    Random requests leave these bounds out, and `test_long_lists.py` tries them. Nearly each request to a route of
    messages would have such a list, whatever it is about, and be refused for its megabytes before it is looked into.
    """
    return [
        (name, field, described)
        for name, component in document["components"]["schemas"].items()
        if not name.endswith("Request")
        for field, value in component.get("properties", {}).items()
        for described in _long_lists(value)
    ]


def _long_lists(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("maxItems", 0) >= _LONG:
            yield schema
        schema = list(schema.values())
    if isinstance(schema, list):
        for each in schema:
            yield from _long_lists(each)


@functools.cache
def load_schema() -> tuple[Any, list[ApiError]]:
    """Return the schema of an application over a stand-in of an engine, and the errors that the application answers."""
    app = create_app(make_context(FakeEngine()))
    for _, _, described in long_lists_within(app.openapi()):
        del described["maxItems"]
    errors = note_errors(app)
    return schema_of(app), errors


def schema_of(app: FastAPI) -> Any:
    """Return the schema of `app`, by which streams of lines are checked too.

    The library takes the schema of server-sent events for that of one event, and any other for that of the whole body.
    """
    for _, content in _streaming(app.openapi()):
        if LINES in content:
            content[LINES]["schema"] = {"type": "array", "items": content[LINES]["schema"]}
    return schemathesis.openapi.from_asgi("/openapi.json", app, config=SchemathesisConfig.from_dict(_CONFIG))


def streams_of(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return what may be sent on the stream of each route that has one, by path: schemas of JSON values."""
    return {path: _values(content) for path, content in _streaming(document)}


def _streaming(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            content = operation["responses"]["200"]["content"]
            if EVENTS in content or LINES in content:
                yield path, content


def _values(content: dict[str, Any]) -> list[dict[str, Any]]:
    if LINES in content:
        return list(content[LINES]["schema"]["anyOf"])
    data = [event["properties"]["data"] for event in content[EVENTS]["schema"]["anyOf"]]
    return [each["contentSchema"] for each in data if "contentSchema" in each]


@schemathesis.deserializer(LINES)
def _lines(_context: object, response: Any) -> list[Any]:
    return [json.loads(line) for line in response.content.splitlines()]


@functools.cache
def client() -> ASGIClient:
    """Return the one client of all requests: making another for each takes as long as the answer."""
    return client_of(load_schema()[0].app)


def client_of(app: Callable[..., Any]) -> ASGIClient:
    """Return a client of an ASGI application that reads streams to their end, and looks for no proxies, which takes
    long."""
    made = get_client(app, max_stream_events=_MOST_EVENTS)
    made.trust_env = False
    return made


def judge_requests(method: str, path: str, count: int, one_in: int = 1) -> None:
    """Send requests with the edges of all that is documented, and `count` random ones.

    With `one_in` only a part of the edges is sent, by a hash: another part to another route with the same fields. The
    requests are made here and not by the library's `parametrize`, with which each process that collects tests makes
    them.
    """

    def is_sent(case: Any) -> bool:
        values = f"{path} {case.method} {case.path_parameters} {case.query} {case.headers} {case.body}"
        return crc32(values.encode(errors="replace")) % one_in == 0

    options = settings(max_examples=count, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
    schema, _ = load_schema()
    config = HypothesisTestConfig(schema.config, list(HypothesisTestMode), options)
    test: Any = create_test(operation=schema[path][method], test_func=judge, config=config)
    test.hypothesis_explicit_examples = tuple(
        each for each in test.hypothesis_explicit_examples if is_sent(each.kwargs["case"])
    )
    test()


def judge(case: Any) -> None:
    """Send one request, and a valid one again for a stream. Raises where an answer is not what the document says."""
    _send(case)
    streaming = dict(_streaming(load_schema()[0].raw_schema))
    if _is_valid(case) and isinstance(case.body, dict) and case.operation.path in streaming:
        # The model is that of the server: requests of others are refused before anything is sent.
        case.body = case.body | {"stream": True, "model": MODEL}
        _send(case)


def _is_valid(case: Any) -> bool:
    return bool(case.meta.generation.mode == GenerationMode.POSITIVE)


def _send(case: Any) -> None:
    _, errors = load_schema()
    errors.clear()
    response = case.call_and_validate(session=client())
    if _is_valid(case) and response.status_code == 400:
        [error] = errors
        # A bound of 63 bits is a float to those who make and check these values: 2^63 + 100 is no more than 2^63 - 1.
        # And the model takes no images, which other models do.
        known = error.code in BEYOND_THE_SCHEMA or str(error.param).endswith("seed")
        assert known or takes_no("images") in error.message, error.message
