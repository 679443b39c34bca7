"""Makes the tiny checkpoints of the end-to-end tests importable here."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "e2e"))
