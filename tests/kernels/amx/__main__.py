"""Runs the kernel tests on the machine code of the amx set, over an emulator of its instructions.

`python -m tests.kernels.amx`, with pytest's options. A processor with AMX needs no emulator: there `make test` runs all
this. Without AVX-512 there is nothing to run.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numaserve_kernel_tests
import numpy as np
from numaserve.kernels import available_isas

EMULATOR = Path(numaserve_kernel_tests.__file__).with_name("libnumaserve_amx_emulator.so")
FOLDER = Path(__file__).parents[1]
INSTRUCTIONS = FOLDER / "test_amx_instructions.py"
# As `Op` of instruction.h has them.
OPERATIONS = ["ldtilecfg", "sttilecfg", "tilerelease", "tilezero", "tileloadd", "tileloaddt1", "tilestored"]
OPERATIONS += ["tdpbf16ps", "tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud"]
OF_KERNELS = ["ldtilecfg", "tilezero", "tileloadd", "tileloaddt1", "tilestored", "tdpbf16ps", "tdpbssd", "tdpbsud"]
FAULT_BYTES = 256


def run(pytest_args: list[str], expected: list[str]) -> bool:
    """Whether these tests pass, and have run each of the `expected` instructions."""
    with tempfile.NamedTemporaryFile() as counts:
        counts.write(bytes(8 * len(OPERATIONS) + FAULT_BYTES))
        counts.flush()
        environment = os.environ | {
            "LD_PRELOAD": str(EMULATOR),
            "NUMASERVE_EMULATED_AMX": "1",
            "NUMASERVE_AMX_COUNTS": counts.name,
        }
        passed = subprocess.run([sys.executable, "-m", "pytest", *pytest_args], env=environment, check=False)
        data = Path(counts.name).read_bytes()
    found = dict(zip(OPERATIONS, np.frombuffer(data, np.uint64, len(OPERATIONS)).tolist(), strict=True))
    print("instructions:", " ".join(f"{name} {count}" for name, count in found.items()), flush=True)
    missing = [name for name in expected if not found[name]]
    if missing:
        print(f"no test has run {', '.join(missing)}")
    if passed.returncode != 0 and (fault := data[8 * len(OPERATIONS) :].rstrip(b"\0").decode()):
        print(f"the last fault: {fault}")
    return passed.returncode == 0 and not missing


def main() -> int:
    """Instructions one by one, then everything else."""
    if "amx" in available_isas() or "avx512" not in available_isas():
        print("this processor has AMX, or no AVX-512: the amx set is not emulated")
        return 0
    options = ["-q", "-n", "2", "--dist", "worksteal", "-m", "not slow", *sys.argv[1:]]
    alone = run([*options, str(INSTRUCTIONS)], OPERATIONS)
    return not (alone and run([*options, f"--ignore={INSTRUCTIONS}", str(FOLDER)], OF_KERNELS))


if __name__ == "__main__":
    sys.exit(main())
