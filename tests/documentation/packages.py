"""The tables of what the package carries: model families, presets, hosts, shapes of models, formats of answers."""

import importlib
import re
from pathlib import Path
from typing import get_args

import yaml
from numaserve.configs import hosts, presets
from numaserve.server.answers.reasoning.formats import reasoning_formats
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.workers.bench.mlperf import tasks
from numaserve.workers.bench.shapes import MODEL_SHAPES
from numaserve.workers.interface.settings import KvCacheDtype, Quantization
from numaserve.workers.models import registry
from numaserve.workers.planning.doctor.checks import CHECKS
from numaserve.workers.weights.gguf_source import DTYPES

from tests.documentation.tables import code, table
from tests.real.tried import TRIED


def families() -> str:
    """Each family, the architectures that it runs, and what its module says of it."""
    rows = []
    for family in registry.families().values():
        head, _, note = _about(f"workers.models.{family.name}").partition(": ")
        gguf = () if family.gguf is None else family.gguf.architectures
        rows.append((head.rstrip("."), code(*family.architectures), code(*gguf), note.rstrip(".")))
    return table(("family", "`architectures` in config.json", "GGUF architecture", "what is its own"), rows)


def models() -> str:
    """Return the table of models in README.md. Families whose names begin with the same word share a row, with their
    checkpoints that `make test-real` serves."""
    rows: dict[str, tuple[list[str], list[str]]] = {}
    for module in registry.families():
        name = _about(f"workers.models.{module}").partition(": ")[0].rstrip(".")
        word = re.match(r"[A-Za-z]+(-[a-z]+)?", name)
        names, tried = rows.setdefault(word[0] if word else name, ([], []))
        names.append(name)
        tried += [each.name for each in TRIED if each.family == module]
    head = ("models", "families", "tried with real weights")
    return table(head, ((word, *map("; ".join, columns)) for word, columns in rows.items()))


def supported() -> str:
    """Return the table of formats in README.md: those that the server reads, and those that it makes."""
    rows = (
        ("sources", "Hugging Face folder, hub id, GGUF file"),
        (
            "checkpoint formats",
            "bf16, f16, f32, AWQ, GPTQ, AutoRound, compressed-tensors, ModelOpt, fp8, MXFP4, MXFP8, NVFP4",
        ),
        ("GGUF tensor types", ", ".join(sorted(kind.name for kind in DTYPES))),
        ("`--quantization`", code(*get_args(Quantization))),
        ("`--kv-cache-dtype`", code(*get_args(KvCacheDtype))),
        ("tool-call formats", code(*tool_formats())),
        ("reasoning formats", code(*reasoning_formats())),
    )
    return table(("", "supported"), rows)


def shipped_presets() -> str:
    """Each file that `--config` knows by name, with the reasons that stand in it."""
    return table(("preset", "what it is for"), ((code(name), _comment(path)) for name, path in presets().items()))


def mlperf_tasks() -> str:
    """The latency limits of MLPerf's tasks."""
    return table(
        ("task", "TTFT, p99, ms", "TPOT, p99, ms"),
        ((code(task.name), f"{task.ttft_ms:g}", f"{task.tpot_ms:g}") for task in tasks()),
    )


def shipped_hosts() -> str:
    """Each file that `numaserve plan --host` knows by name."""
    names = {name: yaml.safe_load(path.read_text())["name"] for name, path in hosts().items()}
    return table(("host", "what it is"), ((code(name), what) for name, what in names.items()))


def host_checks() -> str:
    """Each setting that `numaserve doctor` checks, and why."""
    rows = []
    for check in CHECKS:
        meaning = " ".join((check.look.__doc__ or "").split())
        for opening in ("Check that ", "Report "):
            meaning = meaning.removeprefix(opening)
        rows.append((check.name, check.wanted, f"{meaning[0].upper()}{meaning[1:].rstrip('.')}"))
    return table(("setting", "wanted", "meaning"), rows)


def shapes() -> str:
    """Their names."""
    return code(*MODEL_SHAPES) + "\n"


def tool_call_formats() -> str:
    """What `--tool-call-parser` can name."""
    rows = ((code(name), _about(f"server.answers.tools.formats.{name}")) for name in tool_formats())
    return table(("`--tool-call-parser`", "models"), rows)


def thought_formats() -> str:
    """What `--reasoning-parser` can name."""
    rows = ((code(name), _about(f"server.answers.reasoning.formats.{name}")) for name in reasoning_formats())
    return table(("`--reasoning-parser`", "models"), rows)


def _about(module: str) -> str:
    text = importlib.import_module(f"numaserve.{module}").__doc__ or ""
    return " ".join(text.split("\n\n")[0].split())


def _comment(path: Path) -> str:
    lines = re.match(r"(?:#.*\n)+", path.read_text())
    return " ".join(line.lstrip("# ") for line in lines[0].splitlines()).rstrip(".") if lines else ""
