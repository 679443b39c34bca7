"""Operations and settings come as dicts: what is missing, too much or of another type is refused by its name."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import operation_fields
import pytest
from msgspec import structs
from numaserve.kernels import Program, Team
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.program.native import KINDS, native_settings
from numaserve.workers.program.setup import ProgramSetup, Ranks, RankShape

OPTIONAL = {("attention", "sinks"), ("causal_conv", "bias"), ("linear", "bias")}
OPTIONAL |= {("moe_combine", "shared"), ("moe_experts", "bias"), ("moe_experts", "shared")}
OPTIONAL |= {("moe_route", "correction"), ("reduce", "bias"), ("reduce", "post_norm")}
OPTIONAL |= {("narrow", "beside"), ("narrow", "beside_out"), ("layer_norm", "bias"), ("pool", "weight")}
OPTIONAL |= {("linear", "adapters"), ("linear", "shrunk"), ("rope_store", "rope"), ("rope_store", "rope_rows")}
OPTIONAL |= {("add_norm", "scale"), ("multiply", "x"), ("moe_route", "factors"), ("reduce", "scale")}
OPTIONAL |= {("mean_rows", "shift"), ("mean_rows", "weight")}
OPTIONAL |= {("rms_norm", "quantized"), ("rms_norm", "weight"), ("rope_store", "q_norm"), ("rope_store", "k_norm")}


def test_fields_are_here_for_every_node_there_is() -> None:
    assert set(operation_fields.KINDS) == {kind for kind, _ in KINDS.values()}


def program_for(kind: str) -> Program:
    return operation_fields.program(latent=kind in operation_fields.NEEDS_LATENTS)


def refusal(kind: str, fields: dict[str, Any]) -> str | None:
    """Return the message of a new program that refuses the fields; None where it adds the operation."""
    try:
        program_for(kind).add(kind, fields)
    except TypeError as error:
        return str(error)
    return None


def is_about_type(text: str | None, kind: str, field: str, given: str) -> bool:
    return text is not None and re.match(f"{kind}: '{field}' must be .*, not {given}$", text) is not None


@pytest.mark.parametrize("kind", operation_fields.KINDS)
def test_an_operation_is_added_from_its_fields(kind: str) -> None:
    program, fields = program_for(kind), operation_fields.fields()[kind]
    if kind in operation_fields.NEEDS_RING:
        with pytest.raises(
            ValueError,
            match=f"^{kind}: (the (columns|token ids) of the ranks do not cover|the operation needs context "
            "parallelism, but context parallelism is off)",
        ):
            program.add(kind, fields)
    else:
        program.add(kind, fields)
    assert len(program.profile()) == (kind not in operation_fields.NEEDS_RING | operation_fields.MAKES_NO_NODE)


@pytest.mark.parametrize("kind", operation_fields.KINDS)
def test_a_missing_field_is_named(kind: str) -> None:
    fields = operation_fields.fields()[kind]
    refusals = {field: refusal(kind, {name: fields[name] for name in fields if name != field}) for field in fields}
    assert refusals == {field: f"{kind}: '{field}' is missing" for field in fields}


@pytest.mark.parametrize("kind", operation_fields.KINDS)
def test_a_surplus_field_is_named(kind: str) -> None:
    fields = operation_fields.fields()[kind]
    with pytest.raises(TypeError, match=f"^{kind}: unknown field 'other'$"):
        program_for(kind).add(kind, fields | {"other": 1})


@pytest.mark.parametrize("kind", operation_fields.KINDS)
def test_a_field_of_another_type_is_named(kind: str) -> None:
    fields = operation_fields.fields()[kind]
    refusals = {field: refusal(kind, fields | {field: object()}) for field in fields}
    assert {field: text for field, text in refusals.items() if not is_about_type(text, kind, field, "object")} == {}


@pytest.mark.parametrize("kind", operation_fields.KINDS)
def test_only_some_fields_may_be_none(kind: str) -> None:
    fields, instead = operation_fields.fields()[kind], operation_fields.INSTEAD
    refusals = {field: refusal(kind, fields | {field: None} | instead.get((kind, field), {})) for field in fields}
    assert {
        field: text
        for field, text in refusals.items()
        if not (text is None if (kind, field) in OPTIONAL else is_about_type(text, kind, field, "NoneType"))
    } == {}


@pytest.mark.parametrize(
    ("kind", "field", "value", "wanted"),
    [
        ("linear", "widened", 1, "a bool, not int"),
        ("linear", "name", b"linear", "a str, not bytes"),
        ("linear", "x", (0, 64), r"a tuple \(offset, leading dimension, collective\), not tuple"),
        ("linear", "x", (0, 64, 1.0), r"a tuple \(offset, leading dimension, collective\), not tuple"),
        ("linear", "x", [0, 64, -1], r"a tuple \(offset, leading dimension, collective\), not list"),
        (
            "quantize",
            "out",
            ((0, 64), 64, 0),
            r"a tuple \(\(offset, leading dimension, collective\), columns, group\).*",
        ),
        ("reduce", "cols", 64.0, "a 64-bit int, not float"),
        ("reduce", "cols", True, "a 64-bit int, not bool"),
        ("reduce", "cols", "64", "a 64-bit int, not str"),
        ("reduce", "eps", False, "a number, not bool"),
        ("moe_combine", "top_k", 2**31, "a 32-bit int, not int"),
        ("attention", "cache", 0, r"a tuple \(kind, layer\), not int"),
        ("moe_experts", "weights", [None], "a sequence, each item a PackedMatrix, not list"),
        ("gather_columns", "bounds", "012", "a sequence, each item a 32-bit int, not str"),
    ],
)
def test_a_value_is_of_the_type_that_is_told(kind: str, field: str, value: object, wanted: str) -> None:
    fields = operation_fields.fields()[kind]
    with pytest.raises(TypeError, match=f"^{kind}: '{field}' must be {wanted}$"):
        program_for(kind).add(kind, fields | {field: value})


def test_a_native_object_is_of_the_type_that_is_told() -> None:
    fields = operation_fields.fields()["linear"] | {"weight": operation_fields.vector()}
    with pytest.raises(TypeError, match=r"^linear: 'weight' must be a PackedMatrix, not .*Vector$"):
        operation_fields.program().add("linear", fields)


@pytest.mark.parametrize(
    ("kind", "field", "what"),
    [
        ("linear", "activation", "unknown activation sine"),
        ("moe_route", "scoring", "the score function of experts must be softmax or sigmoid"),
        ("embed", "index", "unknown index of rows sine"),
        ("pool", "pooling", "unknown pooling sine"),
        ("moe_route", "group_score", "the score function of expert groups must be max or top2"),
    ],
)
def test_a_name_that_means_nothing_is_refused(kind: str, field: str, what: str) -> None:
    fields = operation_fields.fields()[kind]
    with pytest.raises(ValueError, match=f"^{kind}: '{field}': {what}$"):
        program_for(kind).add(kind, fields | {field: "sine"})


def test_indices_of_all_tokens_are_refused_for_rows_of_logits() -> None:
    program, fields = operation_fields.program(), operation_fields.fields()
    program.add("narrow", fields["narrow"])
    with pytest.raises(ValueError, match="reads an index of all tokens, but works on rows of logits or pooled rows"):
        program.add("embed", fields["embed"])


def test_numbers_of_numpy_are_numbers() -> None:
    fields = operation_fields.fields()["reduce"] | {"cols": np.int64(64), "eps": np.float32(1e-5)}
    program_for("reduce").add("reduce", fields)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^unknown operation 'softmax'$"):
        operation_fields.program().add("softmax", {})


def test_fields_have_names() -> None:
    fields = operation_fields.fields()["gather"]
    with pytest.raises(TypeError, match=r"^gather: unknown field '1'$"):
        operation_fields.program().add("gather", fields | {1: 2})


@pytest.mark.parametrize("name", operation_fields.SETTINGS)
def test_settings_of_a_program_are_named(name: str) -> None:
    settings = dict(operation_fields.SETTINGS)
    del settings[name]
    with pytest.raises(TypeError, match=f"^Program: '{name}' is missing$"):
        Program(Team([-1]), None, settings)
    with pytest.raises(TypeError, match=f"^Program: '{name}' must be .*, not object$"):
        Program(Team([-1]), None, settings | {name: object()})
    with pytest.raises(TypeError, match=r"^Program: unknown field 'other'$"):
        Program(Team([-1]), None, operation_fields.SETTINGS | {"other": 1})


class MoreCapacity(Capacity, frozen=True, kw_only=True):
    """A record with a limit that the kernels do not have."""

    max_images: int


def test_kernels_have_the_limits_of_the_record_and_no_others() -> None:
    setup = ProgramSetup(RankShape(64, [0, 96]), Capacity.of_program(32, 16, 1, 1, 1), Ranks((1,)))
    native = native_settings(setup) | {"arena_bytes": 64}
    Program(Team([-1]), None, native)
    for limit in Capacity.__struct_fields__:
        with pytest.raises(TypeError, match=f"^Program: '{limit}' is missing$"):
            Program(Team([-1]), None, {name: value for name, value in native.items() if name != limit})
    more = replace(setup, limits=MoreCapacity(**structs.asdict(setup.limits), max_images=1))
    with pytest.raises(TypeError, match=r"^Program: unknown field 'max_images'$"):
        Program(Team([-1]), None, native | native_settings(more))


def test_a_kv_cache_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^Program: 'kv_dtype': unknown KV cache data type fp4$"):
        Program(Team([-1]), None, operation_fields.SETTINGS | {"kv_dtype": "fp4"})


@pytest.mark.parametrize(
    "heads", [(3, 2, 0, 0), (3, 2, 1, 1), (1, 0, 0, 0), (0, 0, 1, 0), (2, 1, -1, 0), (2, 1, 0, -1)]
)
def test_query_heads_that_are_no_multiple_of_the_kv_heads_are_refused(heads: tuple[int, int, int, int]) -> None:
    (kind,) = operation_fields.SETTINGS["caches"]
    with pytest.raises(ValueError, match="the query heads of a rank's KV heads must be a multiple of these"):
        Program(Team([-1]), None, operation_fields.SETTINGS | {"caches": [heads + kind[len(heads) :]]})


def test_a_kv_cache_is_lent_to_layers_with_the_same_keys_and_values_alone() -> None:
    settings, lender = operation_fields.SETTINGS, operation_fields.program()
    ((q_heads, kv_heads, *rest),) = settings["caches"]
    reader = Program(Team([-1]), None, settings | {"caches": [(3 * q_heads, kv_heads, *rest)]}, lender)
    assert lender.kv_memory
    assert reader.kv_memory == []
    others = ({"caches": [(2, 2, *rest)]}, {"num_pages": 5}, {"kv_dtype": "int8"}, {"caches": settings["caches"] * 2})
    for changes in others:
        with pytest.raises(ValueError, match="can only be read by layers with the same keys, values and pages"):
            Program(Team([-1]), None, settings | changes, lender)


@pytest.mark.parametrize("name", operation_fields.GREEDY)
def test_settings_of_a_slot_are_named(name: str) -> None:
    program, settings = operation_fields.program(), dict(operation_fields.GREEDY)
    program.init_slot(0, settings | {"seed": 2**64 - 1, "prompt_history": (1, 2)})
    del settings[name]
    with pytest.raises(TypeError, match=f"^init_slot: '{name}' is missing$"):
        program.init_slot(0, settings)
    with pytest.raises(TypeError, match=f"^init_slot: '{name}' must be .*, not object$"):
        program.init_slot(0, settings | {name: object()})
    with pytest.raises(TypeError, match=r"^init_slot: unknown field 'other'$"):
        program.init_slot(0, operation_fields.GREEDY | {"other": 1})


@pytest.mark.parametrize("kind", ["linear", "attention", "reduce"])
def test_an_operation_joins_none_but_what_it_can(kind: str) -> None:
    with pytest.raises(
        ValueError, match=r"can be fused only with (a norm|the matrix product)|attention can be fused only"
    ):
        program_for(kind).add(kind, operation_fields.fields()[kind] | {"joins_before": True})


@pytest.mark.parametrize("wrong", [{"out": (4096, operation_fields.HIDDEN, -1)}, {"out": operation_fields.PLACE}])
def test_a_sum_joins_no_product_with_another_result(wrong: dict[str, Any]) -> None:
    program, fields = operation_fields.program(), operation_fields.fields()
    program.add("linear", fields["linear"] | wrong)
    sums = fields["reduce"] | {"joins_before": True, "partial": operation_fields.EXACT}
    with pytest.raises(ValueError, match="does not write the ranks' parts"):
        program.add("reduce", sums)


def test_a_product_joins_no_norm_of_another_input() -> None:
    program, fields = operation_fields.program(), operation_fields.fields()
    program.add("rms_norm", fields["rms_norm"] | {"out": (4096, operation_fields.HIDDEN, -1), "quantized": None})
    with pytest.raises(ValueError, match="does not write the input of the product"):
        program.add("linear", fields["linear"] | {"joins_before": True})
