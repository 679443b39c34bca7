"""Every kernel test runs on every instruction set that the machine can run; over an emulator, on what needs it."""

import os

import kv_reference
import numpy as np
import pytest
from numaserve.kernels import _native

EMULATED = "NUMASERVE_EMULATED_AMX" in os.environ
ISAS = ["amx"] if EMULATED else _native.available_isas()
INTERPRETERS = ISAS if EMULATED else [*ISAS, "reference"]


def _parameters(names: list[str]) -> list[object]:
    return [pytest.param(name, marks=pytest.mark.amx if name == "amx" else ()) for name in names]


@pytest.fixture(params=_parameters(ISAS))
def isa(request: pytest.FixtureRequest) -> str:
    """One instruction set after the other; amx_emulated is the amx source over tiles in software."""
    return request.param


@pytest.fixture(params=_parameters(INTERPRETERS))
def interpreter(request: pytest.FixtureRequest) -> str:
    """An instruction set, or the reference."""
    return request.param


@pytest.fixture
def interpreters() -> list[str]:
    """All instruction sets, and the reference, for what takes longer to prepare than to run on one of them."""
    return INTERPRETERS


@pytest.fixture(params=kv_reference.DTYPES)
def kv_dtype(request: pytest.FixtureRequest) -> str:
    """What the KV cache keeps, one after the other."""
    return request.param


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)
