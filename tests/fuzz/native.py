"""The native target, tests/kernels/plan_fuzz.cc, under the address and undefined behaviour sanitizers."""

from pathlib import Path

PLANS = "plans"
_PROGRAM = Path(__file__).resolve().parents[2] / "build" / "asan-ubsan" / "tests" / "plan_fuzz"


def plans_command(seconds: int, found: Path) -> list[str]:
    """The command that runs it; what ends it is written to `crashes` in `found`."""
    return [str(_PROGRAM), str(seconds), "0", str(found / "crashes")]
