"""The time for which a model's server may be silent before its gateway kills it."""

from typing import Any

import pytest
from numaserve.server.config.serve import load_config
from numaserve.server.gateway.models.models_file import ModelSpec, Place
from numaserve.server.gateway.models.residency import Claim
from numaserve.server.gateway.models.resident import Resident


@pytest.mark.parametrize("own", [{}, {"step_deadline_seconds": 2}, {"step_deadline_seconds": 3600}])
def test_a_server_may_be_silent_for_longer_than_a_step_may_take(own: dict[str, Any]) -> None:
    config = load_config({"model": "m", **own})
    resident = Resident(ModelSpec("m", config, own, Place()), [0], Claim(frozenset({0}), {}))
    assert resident.watchdog_s > config.step_deadline_seconds
    assert resident.watchdog_s >= 90
