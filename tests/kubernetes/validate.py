"""Validates documents by the schemas of Kubernetes, which are installed where this runs, or by those that are given."""

import json
import sys

import jsonschema
import kubernetes_validate


def main() -> None:
    """Read documents and schemas from the standard input. Raises for the first document that is not valid."""
    question = json.load(sys.stdin)
    for document in question["documents"]:
        schema = question["schemas"].get(document["kind"])
        if schema is None:
            kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
        else:
            jsonschema.validate(document, schema, cls=jsonschema.Draft202012Validator)


if __name__ == "__main__":
    main()
