"""Files that configure software: manifests, pipelines, settings of editors."""

from typing import Any

_NAME = {"type": "string", "pattern": "^[a-z]([a-z0-9-]{0,14}[a-z0-9])?$"}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_LABELS = {
    "type": "object",
    "maxProperties": 2,
    "additionalProperties": {"type": "string", "pattern": "^[a-z0-9]{1,10}$"},
}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


SCHEMAS: dict[str, dict[str, Any]] = {
    "deployment": _object(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": "apps/v1"},
        kind={"const": "Deployment"},
        metadata=_object(["name"], name=_NAME, labels=_LABELS),
        spec=_object(
            ["replicas", "containers"],
            replicas={"type": "integer", "minimum": 0, "maximum": 20},
            containers={
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "items": _object(
                    ["name", "image"],
                    name=_NAME,
                    image={"type": "string", "pattern": "^[a-z0-9/]{1,20}:[a-z0-9.]{1,8}$"},
                    ports={"type": "array", "maxItems": 2, "items": _object(["containerPort"], containerPort=_PORT)},
                    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
                ),
            },
        ),
    ),
    "service manifest": _object(
        ["kind", "spec"],
        kind={"const": "Service"},
        spec=_object(
            ["type", "ports"],
            type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
            selector=_LABELS,
            ports={
                "type": "array",
                "minItems": 1,
                "maxItems": 2,
                "items": _object(
                    ["port"],
                    port=_PORT,
                    targetPort={"anyOf": [_PORT, _NAME]},
                    protocol={"enum": ["TCP", "UDP"], "default": "TCP"},
                ),
            },
        ),
    ),
    "network policy": _object(
        ["podSelector", "ingress"],
        podSelector=_object([], matchLabels=_LABELS),
        ingress={
            "type": "array",
            "maxItems": 2,
            "items": _object(
                ["from"],
                **{
                    "from": {
                        "type": "array",
                        "maxItems": 2,
                        "items": {"type": "string", "pattern": r"^10(\.\d{1,2}){3}/8$"},
                    }
                },
            ),
        },
    ),
    "package manifest": _object(
        ["name", "version"],
        name={"type": "string", "pattern": "^(@[a-z]{1,8}/)?[a-z][a-z0-9-]{0,15}$"},
        version={"type": "string", "pattern": r"^\d{1,2}\.\d{1,2}\.\d{1,2}$"},
        private={"type": "boolean"},
        scripts={"type": "object", "maxProperties": 2, "additionalProperties": {"type": "string", "maxLength": 30}},
        dependencies={
            "type": "object",
            "maxProperties": 3,
            "additionalProperties": {"type": "string", "pattern": r"^[~^]?\d{1,2}(\.\d{1,2}){0,2}$"},
        },
        license={"enum": ["MIT", "Apache-2.0", "BSD-3-Clause", "UNLICENSED"]},
    ),
    "pipeline": _object(
        ["on", "jobs"],
        on={
            "anyOf": [
                {"enum": ["push", "pull_request"]},
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 2,
                    "items": {"enum": ["push", "pull_request", "schedule"]},
                },
            ]
        },
        jobs={
            "type": "object",
            "patternProperties": {
                "^[a-z]{1,10}$": _object(
                    ["runs-on", "steps"],
                    **{
                        "runs-on": {"enum": ["ubuntu-latest", "macos-latest"]},
                        "steps": {
                            "type": "array",
                            "maxItems": 2,
                            "items": _object(["run"], run={"type": "string", "maxLength": 30}),
                        },
                    },
                )
            },
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 2,
        },
    ),
    "compiler options": _object(
        ["compilerOptions"],
        compilerOptions=_object(
            ["target"],
            target={"enum": ["es2020", "es2022", "esnext"]},
            strict={"type": "boolean"},
            lib={"type": "array", "maxItems": 3, "items": {"enum": ["dom", "es2020", "webworker"]}},
            jsx={"enum": ["react", "preserve", None]},
            paths={
                "type": "object",
                "maxProperties": 2,
                "additionalProperties": {"type": "array", "maxItems": 1, "items": {"type": "string", "maxLength": 20}},
            },
        ),
    ),
    "container composition": _object(
        ["services"],
        services={
            "type": "object",
            "minProperties": 1,
            "maxProperties": 2,
            "additionalProperties": _object(
                ["image"],
                image={"type": "string", "maxLength": 25},
                ports={"type": "array", "maxItems": 2, "items": {"type": "string", "pattern": r"^\d{2,4}:\d{2,4}$"}},
                environment={
                    "anyOf": [
                        {
                            "type": "object",
                            "maxProperties": 2,
                            "additionalProperties": {"type": ["string", "null"], "maxLength": 10},
                        },
                        {
                            "type": "array",
                            "maxItems": 2,
                            "items": {"type": "string", "pattern": "^[A-Z]{1,6}=[a-z]{0,6}$"},
                        },
                    ]
                },
                restart={"enum": ["no", "always", "on-failure"]},
            ),
        },
    ),
    "editor settings": {
        "type": "object",
        "properties": {
            "editor.tabSize": {"type": "integer", "minimum": 1, "maximum": 8, "default": 4},
            "editor.wordWrap": {"enum": ["off", "on", "bounded"]},
            "editor.rulers": {
                "type": "array",
                "maxItems": 3,
                "items": {"type": "integer", "minimum": 40, "maximum": 200},
            },
            "files.exclude": {"type": "object", "maxProperties": 2, "additionalProperties": {"type": "boolean"}},
        },
        "minProperties": 1,
        "additionalProperties": False,
    },
    "feature flag": _object(
        ["key", "variations", "fallthrough"],
        key=_NAME,
        variations={
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": _object(["value"], value={"type": ["boolean", "string", "number"], "maxLength": 10}),
        },
        fallthrough={
            "oneOf": [
                _object(["variation"], variation={"type": "integer", "minimum": 0, "maximum": 2}),
                {"type": "null"},
            ]
        },
    ),
    "alert rule": _object(
        ["alert", "for", "severity"],
        alert={"type": "string", "pattern": "^[A-Z][A-Za-z]{2,20}$"},
        severity={"enum": ["info", "warning", "critical"]},
        threshold={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 100},
        **{"for": {"type": "string", "pattern": "^[1-9][0-9]?[smh]$"}},
    ),
}
