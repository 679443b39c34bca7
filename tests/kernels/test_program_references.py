"""A Program points into weights, vectors and tables: it keeps each of them alive, whoever else lets it go."""

import sys

import numpy as np
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


def test_vectors_and_tables_tell_their_values() -> None:
    values = np.arange(5, dtype=np.float32)
    np.testing.assert_array_equal(Vector(values).to_numpy(), values)
    cos, sin = np.arange(6, dtype=np.float32).reshape(3, 2), np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(RopeTable(cos, sin).to_numpy(), np.stack([cos, sin]))
