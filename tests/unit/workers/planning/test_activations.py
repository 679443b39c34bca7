"""int8 activations of weights that the server quantizes: measured rows decide, for all ranks and for a draft model."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from numaserve.configs import efficiencies
from numaserve.server.kv_disk.fingerprint import launch_facts
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.layers.stored import GGUF_BLOCKS, Stored
from numaserve.workers.planning import activations
from numaserve.workers.planning.activations import faster_by_int8, with_activations
from numaserve.workers.planning.deployment import Deployment, make_deployment
from numaserve.workers.planning.options import DraftOptions

from tests.support.configured import configured
from tests.support.machines import OPTIONS, machine

AWQ = Stored("awq", "int4", 128, bits=4, symmetric=False)
INT4 = ModelSettings(formats=WeightFormats("int4"))
MEASURED = (1, 4, 16, 64, 256, 512)


def measured(gain: Callable[[int], float], format: str = "int4/32", processor: str = "some") -> list[Mapping[str, Any]]:
    """Rows of products by both activations; `gain` is the quotient of their times by the number of rows."""
    sizes = {"processor": processor, "model": "llama-1b", "product": "down", "N": 2048, "K": 8192}
    return [
        {**sizes, "table": f"gemm, {format}{by}", "M": count, "best_us": 100.0 * count / (gain(count) if by else 1.0)}
        for by in ("", " x int8")
        for count in MEASURED
    ]


@pytest.mark.parametrize(
    ("rows", "faster"),
    [
        (measured(lambda _: 1.4), True),
        (measured(lambda _: 1.05), False),
        (measured(lambda count: 1.4 if count > 1 else 1.0), False),
        (measured(lambda count: 1.4 if count == 1 or count > 64 else 0.9), False),
        (measured(lambda count: 1.4 if count <= 64 else 0.9), False),
        (measured(lambda count: 1.4 if count != 16 else 1.0), True),  # the mean over a batch's rows
        (measured(lambda _: 1.4) + measured(lambda _: 0.9, processor="other"), False),
        (measured(lambda _: 1.4) + measured(lambda _: 0.9, processor="other")[: len(MEASURED)], True),  # by bf16 alone
        (measured(lambda _: 1.4)[: len(MEASURED)], False),
        ([row for row in measured(lambda _: 1.4) if row["M"] <= 64], False),
        ([row for row in measured(lambda _: 1.4) if row["M"] > 1], False),
        (measured(lambda _: 1.4, "int4/128"), False),  # the server quantizes in groups of 32
        ([], False),
    ],
)
def test_int8_must_be_faster_for_each_kind_of_step_on_each_processor(
    rows: list[Mapping[str, Any]], faster: bool
) -> None:
    assert faster_by_int8(rows) == (("int4",) if faster else ())


@pytest.mark.parametrize(("isa", "chosen"), [("amx", ()), ("avx512", ("int4",)), ("portable", ()), (None, ())])
def test_the_shipped_rows_choose_for_each_instruction_set(isa: str | None, chosen: tuple[str, ...]) -> None:
    assert with_activations(INT4, isa).formats.int8_activations == chosen
    for asked in ("bf16", "int8"):
        explicit = structs.replace(INT4, formats=WeightFormats("int4", activations=asked))  # type: ignore[arg-type]
        assert with_activations(explicit, isa) == explicit


def test_a_set_without_rows_of_its_own_takes_no_other_s() -> None:
    assert "amx_emulated" not in efficiencies()
    assert with_activations(INT4, "amx_emulated") == INT4


@pytest.fixture
def by_int8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "_faster_by_int8", lambda _: ("int4",))


def deployed(settings: ModelSettings, stored: Mapping[str, Stored] | None = None, **model: Any) -> Deployment:
    draft = DraftOptions("/models/d", configured(), with_activations(INT4, "a set"))
    options = replace(OPTIONS, tp=2, settings=with_activations(settings, "a set"), draft=draft)
    return make_deployment(options, configured(stored=stored or {}, **model), machine(4, 4))


@pytest.mark.usefixtures("by_int8")
def test_all_ranks_and_their_draft_model_are_told_and_cached_pages_know_it() -> None:
    made = deployed(INT4)
    assert made.multiplied_by == {"int8": ["int4"]}
    for launch in made.launches:
        assert launch.settings.formats.int8_activations == ("int4",)
        assert launch.draft is not None
        assert launch.draft.settings.formats.int8_activations == ("int4",)
    kept = deployed(structs.replace(INT4, formats=WeightFormats("int4", activations="bf16")))
    assert kept.multiplied_by == {"bf16": ["int4"]}
    assert launch_facts(made.launches[0])["settings"] != launch_facts(kept.launches[0])["settings"]
    assert not [note for note in (*made.notes, *kept.notes) if "activations" in note]


@pytest.mark.usefixtures("by_int8")
def test_published_weights_keep_bf16_and_a_note_names_the_option() -> None:
    published = {f"layers.{layer}.self_attn.o_proj": AWQ for layer in range(30)}
    made = deployed(ModelSettings(), published)
    assert made.multiplied_by == {"bf16": ["int4"]}
    (note,) = (note for note in made.notes if "activations" in note)
    assert note.startswith("the published int4 weights are multiplied by bf16 activations: --activation-dtype int8 ")
    head = WeightFormats("int4", "int4")  # quantized by the server next to published matrices
    assert deployed(ModelSettings(formats=head), published, tie_word_embeddings=False).multiplied_by == {
        "bf16": ["int4"],
        "int8": ["int4"],
    }
    for settings, stored in (
        (ModelSettings(formats=WeightFormats(activations="bf16")), AWQ),
        (ModelSettings(), GGUF_BLOCKS["q8_0"]),
        (ModelSettings(), GGUF_BLOCKS["q4_0"]),
    ):
        quiet = deployed(settings, dict.fromkeys(published, stored))
        assert not [note for note in quiet.notes if "activations" in note]
