"""Kinds of other projects, held to the types that these publish: a field that is not there does not compile."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.clients.environments import node_modules_with

PACKAGES = {
    "@kubernetes-models/gateway-api": "2.0.0",
    "@kubernetes-models/prometheus-operator": "6.0.0",
    "typescript": "5.9.3",
}
TYPES = {
    "HTTPRoute": "@kubernetes-models/gateway-api/gateway.networking.k8s.io/v1/HTTPRoute",
    "ServiceMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/ServiceMonitor",
}
OPTIONS = ("--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext")


def check_published_types(documents: list[dict[str, Any]], folder: Path) -> set[str]:
    """Compile the documents of these kinds in `folder`. Returns the kinds that were there; raises for a mistake."""
    node_modules_with(PACKAGES, folder)
    lines = []
    kinds = set()
    for number, document in enumerate(documents):
        if path := TYPES.get(kind := document["kind"]):
            kinds.add(kind)
            lines.append(f'import type {{ I{kind} as Type{number} }} from "{path}";')
            lines.append(f"export const document{number}: Type{number} = {json.dumps(document)};")
    (folder / "documents.ts").write_text("\n".join(lines))
    compiler = folder / "node_modules" / "typescript" / "bin" / "tsc"
    subprocess.run((shutil.which("node") or "node", compiler, *OPTIONS, "documents.ts"), check=True, cwd=folder)
    return kinds
