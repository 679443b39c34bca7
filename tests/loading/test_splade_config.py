"""SPLADE models: what their files may say, and the memory that their vectors need."""

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ModelSettings
from numaserve.workers.models.config.sentence_transformers import read_sentence_modules
from numaserve.workers.models.load import load_model_config
from numaserve.workers.planning.deployment import Deployment, make_deployment
from numaserve.workers.program.layout import layout
from numaserve.workers.program.recording.builder import ProgramBuilder
from numaserve.workers.program.setup import ProgramSetup, Ranks

from tests.support import encoders
from tests.support.configured import configured, splade
from tests.support.machines import OPTIONS, machine
from tests.support.sentence_folder import write_modules, write_splade

POOLED = ModelSettings(pooled=True)
OLD, NEW = "sentence_transformers.sparse_encoder.models", "sentence_transformers.sparse_encoder.modules"


@pytest.mark.parametrize("package", [OLD, NEW])
@pytest.mark.parametrize(
    ("config", "logarithms"),
    [
        ({}, 1),
        ({"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": 30522}, 1),
        ({"activation_function": "log1p_relu", "embedding_dimension": 30522}, 2),
    ],
)
def test_both_forms_of_the_modules_are_read(
    package: str, config: dict[str, object], logarithms: int, tmp_path: Path
) -> None:
    modules = read_sentence_modules(write_splade(tmp_path, package, **config))
    assert modules is not None
    assert (modules.logarithms, modules.pooling, modules.normalize, modules.dense) == (logarithms, "max", False, ())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pooling_strategy": "sum"}, "pooling_strategy='sum' is not supported; supported values: max"),
        ({"activation_function": "gelu"}, "activation_function='gelu' is not supported; supported values: relu, log1p"),
    ],
)
def test_other_poolings_are_refused(config: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=rf"1_SpladePooling/config.json: {message}"):
        read_sentence_modules(write_splade(tmp_path, **config))


def test_models_with_a_part_for_queries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"the modules are Router; supported are .*a Transformer and a SpladePool"):
        read_sentence_modules(write_modules(tmp_path, "Router"))


@pytest.mark.parametrize("name", ["bert", "distilbert", "roberta", "modernbert"])
def test_a_model_without_the_head_is_refused(name: str, tmp_path: Path) -> None:
    encoders.save(name, encoders.random_encoder(name), tmp_path)
    write_splade(tmp_path)
    message = rf"modules.json: SPLADE needs .*, and {encoders.ARCHITECTURES[name]} has none .*BertForMaskedLM"
    with pytest.raises(OperatorError, match=message):
        load_model_config(tmp_path, POOLED)


def test_vectors_have_an_entry_for_each_token_of_the_vocabulary(tmp_path: Path) -> None:
    model = encoders.random_encoder("bert", masked=True)
    config = load_model_config(write_splade(encoders.save("bert", model, tmp_path)), POOLED)
    assert (config.is_sparse, config.vector_size, config.decoder.pooling) == (True, encoders.VOCAB, "max")
    plain = load_model_config(tmp_path)
    assert (plain.is_sparse, plain.decoder.masked_head) == (False, None)


def deployed(tp: int, vocabulary: int = 49152) -> Deployment:
    options = replace(OPTIONS, tp=tp, settings=POOLED)
    return make_deployment(options, splade(vocab_size=vocabulary), machine(*[4] * tp))


def arena_bytes(deployment: Deployment, rank: int) -> int:
    """The memory of a step's intermediate results on a rank."""
    launch = deployment.launches[rank]
    part = splade().partition(launch.weights, POOLED).ranks[rank]
    limits = structs.replace(launch.capacity, max_logit_rows=0)
    setup = ProgramSetup(
        splade().decoder.shape(part), limits, Ranks(part.partition.shares, rank, deployment.ring_slot_bytes), POOLED
    )
    builder = ProgramBuilder(setup)
    splade().decoder.forward(builder, part)
    found = layout(builder.fused())
    messages = [buffer.nbytes for buffer in found.places if buffer.collective]
    assert max(messages, default=0) <= deployment.ring_slot_bytes or launch.world_size == 1
    return found.arena_bytes


@pytest.mark.parametrize("tp", [1, 2, 3])
def test_the_plan_has_room_for_the_logits_of_all_tokens_of_a_step(tp: int) -> None:
    deployment, tiny = deployed(tp), deployed(tp, 64)
    for rank in range(tp):
        logits = 4 * 512 * (49152 // tp)
        needed = arena_bytes(deployment, rank)
        assert logits < needed < deployment.ranks[rank].scratch_bytes
        assert needed < deployment.ranks[rank].scratch_bytes - tiny.ranks[rank].scratch_bytes + logits


def test_ranks_divide_the_vocabulary_in_whole_cache_lines() -> None:
    encoder, decoder = splade(vocab_size=30538), configured(vocab_size=30538)
    assert encoder.partition([1, 1]).bounds(encoder.decoder.embedding.axis) == (0, 15296, 30538)
    assert decoder.partition([1, 1]).bounds(decoder.decoder.embedding.axis) == (0, 15280, 30538)
