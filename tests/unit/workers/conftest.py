"""Makes the tiny checkpoints of the end-to-end tests importable here, and keeps their matrix products on one thread."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "e2e"))
# Tests run in as many processes as there are cores: libraries that start a thread for each core only get in each
# other's way. Read when numpy and torch are imported, which test modules do after this file.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
