"""The tables of routes, from the OpenAPI document, and of requests' fields, from their schemas."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from numaserve.server.app.application import create_app
from numaserve.server.app.decode_main import MODELS
from numaserve.server.generation.context import ApiContext
from numaserve.server.http.fields.types import MAX_INT
from numaserve.server.http.limits import ApiLimits
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.surfaces.openai.chats.chat_schema import ChatRequest
from numaserve.server.surfaces.openai.chats.messages import Message
from numaserve.server.surfaces.openai.completion_schema import CompletionRequest
from numaserve.server.surfaces.openai.constraint_fields import ConstraintFields
from numaserve.server.surfaces.openai.sampling_fields import SamplingFields
from pydantic import BaseModel

from tests.documentation.tables import code, table

_UNHEEDED, _REFUSED = "No effect", "Not supported"
Schema = Mapping[str, Any]


def openapi() -> Schema:
    """Return the OpenAPI document of a server."""
    # Nothing is asked of the engine and the tokenizer before a request comes.
    unused: Any = None
    context = ApiContext(unused, unused, Metrics("m"), "m", "m", "0", ApiLimits(32, 32, 1, 1, 1.0), tokenizer_info=True)
    return create_app(context).openapi()


def _operations() -> Iterator[tuple[str, str, Schema]]:
    """Yield method, path and description of each operation of the OpenAPI document."""
    for path, methods in openapi()["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def routes() -> str:
    """Each route, with the others that answer the same beside it."""
    paths: dict[str, list[str]] = {}
    for method, path, operation in _operations():
        paths.setdefault(operation["description"], []).append(f"{method} {path}")
    paths["Return a page to chat with the model and to inspect the machine; only the page asks for a key."] = [
        "GET /ui"
    ]
    paths["Return the OpenAPI document: routes, fields, responses and errors."] = ["GET /openapi.json"]
    return table(
        ("endpoint", "what it does"),
        ((code(*sorted(names, key=len)), text.rstrip(".")) for text, names in paths.items()),
    )


def common_fields() -> str:
    """What both completion endpoints serve."""
    return _table(SamplingFields, _served(SamplingFields))


def constraint_fields() -> str:
    """What says, for both completion endpoints, what an answer must look like."""
    return _table(ConstraintFields, _served(ConstraintFields))


def chat_fields() -> str:
    """What only /v1/chat/completions serves, or serves in a way of its own."""
    return _table(ChatRequest, _own(ChatRequest))


def completion_fields() -> str:
    """What only /v1/completions serves."""
    return _table(CompletionRequest, _own(CompletionRequest))


def message_fields() -> str:
    """What a message of a conversation may hold."""
    return _table(Message, _properties(Message))


def other_fields() -> str:
    """The fields of every other route that takes a body, each below a heading."""
    bodies = {
        operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]: path
        for _, path, operation in _operations()
        if "requestBody" in operation
    }
    # One of them is of no route: what a gateway looks at in bodies of all.
    others = {name: model for name, model in MODELS.items() if name in bodies and not issubclass(model, SamplingFields)}
    return "\n".join(f"### `{bodies[name]}`\n\n{_table(model, _properties(model))}" for name, model in others.items())


def unheeded_fields() -> str:
    """What is accepted without effect, and why."""
    why: dict[str, list[str]] = {}
    for name, schema in _all_fields().items():
        text = schema.get("description", "")
        if text.startswith(_UNHEEDED):
            why.setdefault(text.removeprefix(_UNHEEDED).lstrip(": ").rstrip("."), []).append(name)
    return table(
        ("field", "why"),
        ((code(*names), text or "it does not affect the result") for text, names in why.items()),
    )


def refused_fields() -> str:
    """What is known and not supported, by the values that are accepted."""
    chat, completion = _refused(ChatRequest), _refused(CompletionRequest)
    rows = []
    for accepted in dict.fromkeys([*chat.values(), *completion.values()]):
        both = [name for name in chat if chat[name] == accepted == completion.get(name)]
        alone = ([name for name in of if of[name] == accepted and name not in both] for of in (chat, completion))
        rows.append((accepted, code(*both), *(code(*names) for names in alone)))
    return table(("accepted", "both endpoints", "chat", "completions"), rows)


def _properties(model: type[BaseModel]) -> dict[str, Schema]:
    return dict(model.model_json_schema()["properties"])


def _all_fields() -> dict[str, Schema]:
    return _properties(CompletionRequest) | _properties(ChatRequest)


def _served(model: type[BaseModel]) -> dict[str, Schema]:
    return {
        name: schema
        for name, schema in _properties(model).items()
        if not schema.get("description", "").startswith((_UNHEEDED, _REFUSED))
    }


def _own(model: type[BaseModel]) -> dict[str, Schema]:
    common = _properties(SamplingFields) | _properties(ConstraintFields)
    return {name: schema for name, schema in _served(model).items() if common.get(name) != schema}


def _refused(model: type[BaseModel]) -> dict[str, str]:
    return {
        name: _accepted(schema)
        for name, schema in _properties(model).items()
        if schema.get("description", "").startswith(_REFUSED)
    }


def _accepted(schema: Schema) -> str:
    if "enum" not in schema:
        return str(schema["description"]).split("; ")[1].rstrip(".")
    return _values(schema["enum"])


def _values(values: Sequence[object]) -> str:
    # 1 and 1.0 are two to Python's checks and one to a client.
    return code(*dict.fromkeys(json.dumps(int(each) if each == 1.0 and each is not True else each) for each in values))


def _table(model: type[BaseModel], fields: Mapping[str, Schema]) -> str:
    whole = model.model_json_schema()
    rows = [row for name, schema in fields.items() for row in _rows(name, schema, whole.get("$defs", {}))]
    needed = {code(name) for name in whole.get("required", ())}
    shown = ((name, takes, f"{note}; must be given" if name in needed else note) for name, takes, note in _joined(rows))
    return table(("field", "takes", "meaning"), shown)


def _joined(rows: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """The rows; those in turn that are not served, and differ in nothing but their names, as one."""
    for (takes, note), same in groupby(rows, key=lambda row: row[1:]):
        names = [name for name, *_ in same]
        together = note.startswith((_UNHEEDED, _REFUSED))
        yield from ((each, takes, note) for each in ([", ".join(names)] if together else names))


def _rows(name: str, schema: Schema, definitions: Mapping[str, Schema]) -> Iterator[tuple[str, str, str]]:
    match list(_alternatives(schema)):
        case [{"$ref": reference}]:
            yield code(name), "object", schema.get("description", "").rstrip(".")
            for inner, of_inner in _named(reference, definitions)["properties"].items():
                yield from _rows(f"{name}.{inner}", of_inner, definitions)
        case _:
            yield code(name), _takes(schema, definitions), schema.get("description", "").rstrip(".")


def _alternatives(schema: Schema) -> Iterator[Schema]:
    """Yield what a value may be, in any depth, without null."""
    if schema.get("type") == "null":
        return
    several = schema.get("oneOf") or schema.get("anyOf")
    if several is None:
        yield schema
    for each in several or ():
        yield from _alternatives(each)


def _named(reference: str, definitions: Mapping[str, Schema]) -> Schema:
    return definitions[reference.rpartition("/")[2]]


def _takes(schema: Schema, definitions: Mapping[str, Schema], ending: str = "") -> str:
    """What a value may be; with the `ending` of the plural what several may be."""
    alternatives = list(_alternatives(schema))
    objects = [
        _named(each["$ref"], definitions) if "$ref" in each else each
        for each in alternatives
        if "$ref" in each or "properties" in each
    ]
    others = [each for each in alternatives if "$ref" not in each and "properties" not in each]
    texts = [_plain(each, definitions, ending) for each in others]
    return ", or ".join(dict.fromkeys([*texts, *([_objects(objects, ending)] if objects else [])]))


def _objects(schemas: Sequence[Schema], ending: str) -> str:
    """Return the name of objects of one or several kinds, which clients distinguish by `type`."""
    named = [_types(each["properties"].get("type", {})) for each in schemas]
    if not any(named):
        return f"object{ending}"
    others = "" if all(named) else " or another `type`"
    return f"object{ending} of `type` {_values([value for values in named for value in values])}{others}"


def _types(schema: Schema) -> list[str]:
    values = [each.get("enum", [each["const"]] if "const" in each else []) for each in _alternatives(schema)]
    return [value for some in values for value in some]


def _plain(schema: Schema, definitions: Mapping[str, Schema], ending: str) -> str:
    if "enum" in schema:
        return _values(schema["enum"])
    kind = schema.get("type")
    if kind in {"integer", "number"}:
        return _range(schema, ending)
    words = {"array": "list", "string": "text", "object": "object", "boolean": "true or false", None: "anything"}
    return words[kind] + (ending if kind != "boolean" else "") + _extent(schema, definitions)


def _extent(schema: Schema, definitions: Mapping[str, Schema]) -> str:
    if "items" in schema:
        most = f"at most {schema['maxItems']} " if "maxItems" in schema else ""
        return f" of {most}{_takes(schema['items'], definitions, 's')}"
    for key, unit in (("maxLength", "characters"), ("maxProperties", "keys")):
        if key in schema:
            return f" of at most {schema[key]} {unit}"
    return ""


def _range(schema: Schema, ending: str) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    kind = ("whole number" if schema["type"] == "integer" else "number") + ending
    if most is None or most >= MAX_INT:
        return f"{kind} from {least}" if least is not None and least > -MAX_INT else f"{kind} of 64 bits"
    return f"{kind}, {least} to {most}"
