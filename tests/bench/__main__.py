"""``python -m tests.bench [NAME ...]``: runs the benchmarks, or those named, in turn; JSON goes to bench-results/.

The first four are commands of ``numaserve bench``.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[2] / "bench-results"
NUMASERVE = [sys.executable, "-m", "numaserve.server.cli.main", "bench"]
STEPS = [*NUMASERVE, "offline", "--tp", "1", "--tp", "2", "--batch-size", "1", "--batch-size", "16", "--no-operations"]
EXPANDED = ["--quantization", "bf16"]
INT8 = ["--quantization", "int8", "--quantize-lm-head"]
FORMATS = ("bf16", "int8", "int4", "fp8")
AMX = "amx"  # measures again what others do, and runs only where it is named
COMMANDS = {
    "kernels": [[*NUMASERVE, "kernels"]],
    "ring": [[*NUMASERVE, "ring"]],
    "offline": [
        [*STEPS, *model, *format]
        for model, formats in ((["demo"], ([], EXPANDED)), (["--shape", "llama-1b", "--input-len", "256"], ([], INT8)))
        for format in formats
    ],
    "load": [[*NUMASERVE, "load", *model, "--tp", "1", "--tp", "2"] for model in (["demo"], ["--shape", "llama-1b"])],
    "serving": [[sys.executable, str(Path(__file__).with_name("bench_serving.py"))]],
    "gateway": [[sys.executable, str(Path(__file__).with_name("bench_gateway.py"))]],
    "speculation": [
        [sys.executable, str(Path(__file__).with_name("bench_speculation.py")), *model] for model in ([], ["--larger"])
    ],
    "draft-model": [
        [sys.executable, str(Path(__file__).with_name("bench_draft_model.py")), *model] for model in ([], ["--mtp"])
    ],
    "verification": [
        [sys.executable, str(Path(__file__).with_name("bench_verification.py")), *model]
        for model in (["--model", "demo"], *(["--shape", "llama-1b", "--quantization", each] for each in FORMATS))
    ],
    "images": [[sys.executable, "-m", "tests.bench.bench_images"]],
    "spans": [[sys.executable, str(Path(__file__).with_name("bench_spans.py"))]],
    AMX: [[sys.executable, "-m", "tests.bench.bench_amx"]],
}


def main() -> int:
    """Run each in a process of its own; the worst exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*COMMANDS, []], metavar="NAME", help=", ".join(COMMANDS))
    parser.add_argument("--base", metavar="REV", help=f"commit to compare with; of {AMX} alone")
    options = parser.parse_args()
    if options.base is not None and options.names != [AMX]:
        parser.error(f"--base is an option of {AMX}: name that benchmark alone")
    names = options.names or [name for name in COMMANDS if name != AMX]
    more = [] if options.base is None else ["--base", options.base]
    RESULTS.mkdir(exist_ok=True)
    at = time.strftime("%Y%m%d-%H%M%S")
    return max(
        subprocess.run([*command, *more, "--json", str(RESULTS / f"{name}-{at}.jsonl")], check=False).returncode
        for name in names
        for command in COMMANDS[name]
    )


if __name__ == "__main__":
    sys.exit(main())
