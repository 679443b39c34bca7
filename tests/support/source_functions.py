"""Functions of modules that cannot be imported, such as image processors without torchvision."""

import ast
import importlib.util
import math
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch


def functions_of(module: str, *names: str) -> dict[str, Any]:
    """Return the functions `names` of a module, made from its source."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    parsed = ast.parse(Path(spec.origin).read_text())
    kept = [node for node in parsed.body if isinstance(node, ast.FunctionDef) and node.name in names]
    known: dict[str, Any] = {
        "torch": torch,
        "math": math,
        "defaultdict": defaultdict,
        "lru_cache": lru_cache,
        "SizeDict": SimpleNamespace,
    }
    exec(compile(ast.Module(kept, []), spec.origin, "exec"), known)  # noqa: S102  source of an installed package
    return {name: known[name] for name in names}
