"""Attention of six ranks of 43 and 42 cores: threads have equal work, whatever sequences a step mixes."""

import json
from collections.abc import Iterator

import pytest
from numaserve.configs import efficiencies
from numaserve.workers.interface.capacity import Capacity
from numaserve.workers.interface.settings import ModelSettings, WeightFormats
from numaserve.workers.models.load import load_model_config
from numaserve.workers.planning.roofline.efficiency import load_efficiencies
from numaserve.workers.planning.roofline.machine import load_machine
from numaserve.workers.planning.roofline.phases import RankMachine
from numaserve.workers.planning.simulation.counting import CountedGroup
from numaserve.workers.planning.simulation.times import HostTimes, OperationTime
from numaserve.workers.program.cost import StepWork

from tests.support.full_shapes import DEEPSEEK_R1, LLAMA_70B, QWEN3_235B

SIX = (43, 43, 42, 43, 43, 42)
LIMITS = Capacity.of_program(max_step_tokens=640, max_logit_rows=91, max_slots=91, pages_per_slot=3200, num_pages=3201)
INT8 = ModelSettings(formats=WeightFormats("int8"))

LONG, CHUNK = (100_000, 1), (0, 512)
FAR_CHUNK, QUESTION = (8192, 512), (100_000, 64)  # the latter: new tokens after a long prefix that is cached
SHORT = [(1000, 1)] * 90

Sequences = list[tuple[int, int]]


class Attention:
    """The attention of a model's first layer, on a host that is not here."""

    def __init__(self, group: CountedGroup, query_heads: int) -> None:
        machine = load_machine("2x6980p")
        ranks = [RankMachine(machine, cores, machine.node_read_gb_s * 1e9) for cores in SIX]
        self._group, self._times = group, HostTimes(ranks, load_efficiencies(efficiencies()["amx"]))
        self.query_heads = query_heads  # of the first rank

    def of(self, sequences: Sequences) -> OperationTime:
        """The time that the attention of these sequences takes on the slowest rank."""
        totals = self._times.of(self._group, StepWork(sequences, len(sequences)))
        ranks = [
            totals.operation(*key, rank)
            for rank in range(len(SIX))
            for key in totals.names(rank)
            if key[0] == "attention"
        ]
        return max(ranks, key=lambda each: each.seconds)


MODELS = {
    "llama": LLAMA_70B,
    "qwen": QWEN3_235B,
    "deepseek": DEEPSEEK_R1 | {"first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
}


@pytest.fixture(scope="module", params=MODELS)
def attention(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attention]:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(MODELS[request.param] | {"num_hidden_layers": 1}))
    config = load_model_config(folder)
    partition = config.partition(SIX, INT8)
    (kind,) = config.decoder.shape(partition.ranks[0]).caches
    with CountedGroup(config.decoder, partition, LIMITS, 4 * 640 * 8192) as group:
        yield Attention(group, kind.heads.query)


MIXED: dict[str, Sequences] = {
    "a long sequence and a chunk": [LONG, CHUNK],
    "a long sequence and a far chunk": [LONG, FAR_CHUNK],
    "a long sequence among short ones": [*SHORT, LONG],
    "a question about a long text": [QUESTION],
    "a question among short sequences": [*SHORT, QUESTION],
    "a chunk": [CHUNK],
    "a far chunk": [FAR_CHUNK],
    "short sequences": SHORT,
}


@pytest.mark.parametrize("sequences", MIXED.values(), ids=MIXED)
def test_threads_have_equal_work(attention: Attention, sequences: Sequences) -> None:
    # A rank has 11 query heads of Llama, so 22 items of 64 tokens. There is memory for two thirds of the partial
    # results that would have to be merged for equal work.
    limited = QUESTION in sequences and attention.query_heads == 11
    assert attention.of(sequences).threads > (0.75 if limited else 0.9)


@pytest.mark.parametrize("chunk", [CHUNK, FAR_CHUNK])
def test_a_long_sequence_next_to_a_chunk_takes_little_longer_than_either_alone(
    attention: Attention, chunk: tuple[int, int]
) -> None:
    """Threads read the one while they compute the other."""
    alone = [attention.of([each]).seconds for each in (LONG, chunk)]
    assert attention.of([LONG, chunk]).seconds < 1.25 * max(alone)
