"""The golden record: every tiny checkpoint comes to what it came to when the record was made, bit for bit."""

import pytest

from tests.support.golden.__main__ import measured
from tests.support.golden.cases import CHECKPOINTS
from tests.support.golden.record import ISAS, differences, load_record


@pytest.mark.slow
@pytest.mark.parametrize("isa", ISAS)
def test_nodes_packed_bytes_plans_and_log_probabilities_are_as_recorded(isa: str) -> None:
    assert differences(load_record(), measured((isa,))[isa], isa, CHECKPOINTS) == []
