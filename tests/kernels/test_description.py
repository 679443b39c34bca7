"""What a Program says of itself, by which two Programs are compared."""

import copy
from typing import Any

from numaserve.kernels import Team
from numaserve.workers.bench.programs import begin, built, make_builder, random_matrix

from tests.support.golden.program_text import program_lines


def described() -> dict[str, Any]:
    """A program that embeds, takes two products of one norm, and samples."""
    team = Team([-1])
    b = make_builder(team, hidden=64, step_tokens=32)
    _, x = begin(b, team)
    b.split(b.linear(x, random_matrix(team, 96, 64)), 32, 64)
    b.sample(b.lm_head(x, random_matrix(team, 64, 64)))
    return built(b, team).describe()


def test_equal_programs_have_equal_descriptions() -> None:
    assert described() == described()


def test_a_description_names_weights_vectors_and_attributes() -> None:
    embed, norm, linear, *_, sample = described()["nodes"]
    assert embed["attributes"] == {"first_row": 0, "scale": 1.0}
    assert [name for name, count, _ in norm["vectors"] if count == 64] == ["weight"]
    assert [(each["role"], each["shape"], each["format"]) for each in linear["weights"]] == [
        ("weight", (96, 64), "bf16")
    ]
    assert sample["attributes"]["vocab_first"] == [0, 64]


def test_lines_do_not_tell_where_the_arena_has_a_matrix() -> None:
    here = described()
    there = copy.deepcopy(here)
    for node in there["nodes"]:
        for operand in node["operands"]:
            offset, ld, collective = operand["place"]
            operand["place"] = (offset + 4096, ld, collective)
    assert program_lines(there) == program_lines(here)


def test_lines_tell_which_matrix_is_read() -> None:
    here = described()
    there = copy.deepcopy(here)
    embed, norm = there["nodes"][:2]
    offset, ld, collective = embed["operands"][0]["place"]
    norm["operands"][0]["place"] = (offset + 128, ld, collective)
    changed = [a != b for a, b in zip(program_lines(there), program_lines(here), strict=True)]
    assert changed[:2] == [False, True]
    assert not any(changed[2:])
