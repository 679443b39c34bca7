"""A Program points into weights, vectors and tables: it keeps each of them alive, whoever else lets it go."""

from __future__ import annotations

import sys

import operation_fields
import pytest
from numaserve.kernels import PackedMatrix, RopeTable, Vector


@pytest.mark.parametrize("kind", [kind for kind in operation_fields.KINDS if kind not in operation_fields.NEEDS_RING])
def test_a_program_holds_what_its_nodes_point_into(kind: str) -> None:
    fields = operation_fields.fields()[kind]
    flat = [each for value in fields.values() for each in (value if isinstance(value, list) else [value])]
    objects = [each for each in flat if isinstance(each, PackedMatrix | Vector | RopeTable)]
    program = operation_fields.program(latent=kind in operation_fields.NEEDS_LATENTS)
    before = [sys.getrefcount(each) for each in objects]
    program.add(kind, fields)
    assert [sys.getrefcount(each) for each in objects] == [count + 1 for count in before]
    del program
    assert [sys.getrefcount(each) for each in objects] == before
