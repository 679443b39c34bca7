"""Promise: the numerics version rises with every change of a bit. Cached pages on disk are reused by it."""

import json
from pathlib import Path

import pytest
from numaserve.workers.interface.numerics import NUMERICS_VERSION

from tests.e2e import golden_bits

_ADVICE = """
The workers compute other bits than those of NUMERICS_VERSION {version}, and cached pages on disk would be mixed with
new ones. If the change of bits is meant: raise NUMERICS_VERSION in workers/interface/numerics.py, and renew the record
by

    python -m tests.e2e.golden_bits
"""


@pytest.mark.parametrize("isa", golden_bits.instruction_sets())
@pytest.mark.parametrize("name", golden_bits.CASES)
def test_the_bits_are_those_of_the_numerics_version(name: str, isa: str, tmp_path: Path) -> None:
    machine = golden_bits.recorded().get(golden_bits.machine(), {})
    if isa not in machine:
        pytest.skip("nothing is recorded for this machine: python -m tests.e2e.golden_bits adds it")
    digest = golden_bits.digest_of(golden_bits.CASES[name], isa, tmp_path)
    assert digest == machine[isa][name], _ADVICE.format(version=NUMERICS_VERSION)


def test_the_record_is_of_the_numerics_version() -> None:
    assert json.loads(golden_bits.RECORD.read_text())["version"] == NUMERICS_VERSION, _ADVICE
