"""The whole estimate of a model on a host: the memory of its nodes, and the time of its steps."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.settings import ActivationDtype
from numaserve.workers.layers.partition import Partition
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.activations import activation_notes
from numaserve.workers.planning.adapters import adapter_notes
from numaserve.workers.planning.deployment import check_experts, draft_options, place
from numaserve.workers.planning.kv_disk import KvRecords, kv_records
from numaserve.workers.planning.needs import full_pages, longer_steps, rank_needs, step_tokens
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.placement import RankCores
from numaserve.workers.planning.roofline.efficiency import Efficiencies
from numaserve.workers.planning.roofline.machine import Machine
from numaserve.workers.planning.roofline.memory import NodeMemory, node_memory, remedies
from numaserve.workers.planning.roofline.phases import RankMachine, decode_step, prefill_steps
from numaserve.workers.planning.simulation.phases import PhaseEstimate, Phases, economical
from numaserve.workers.planning.states import check_state_cache
from numaserve.workers.planning.topology import Topology
from numaserve.workers.planning.windows import full_window_pages
from numaserve.workers.program.cost import StepWork


@dataclass(frozen=True)
class Load:
    """The load: `batch` prompts of `input_len` tokens, with answers of `output_len`: 0 for prompts that are embedded or
    scored, which gives no text."""

    input_len: int
    output_len: int
    batch: int

    @property
    def context(self) -> int:
        """The number of tokens of a sequence at its end."""
        return self.input_len + self.output_len


@dataclass(frozen=True)
class Estimate:
    """The estimate of a load: `prefill` of one prompt, `decode` of a step of the whole batch in the middle of the
    answers. TTFT is that of the last prompt of the batch. Without an answer there is no decoding. Prompts are computed
    in steps of at most `step_tokens` tokens, chosen from `step_sizes` where there are several. `tile` is the run of the
    vision tower of a model that reads images. `kv_records` are those of the disk tier, if the model caches prefixes."""

    machine: Machine
    load: Load
    ranks: list[RankMachine]
    memory: list[NodeMemory]
    remedies: list[str]  # empty where the model fits
    step_sizes: Sequence[int]
    step_tokens: int
    prefill: PhaseEstimate
    decode: PhaseEstimate | None
    tile: PhaseEstimate | None
    notes: tuple[str, ...]
    multiplied_by: Mapping[ActivationDtype, Sequence[str]]  # formats of weights in groups, by activations
    kv_records: KvRecords | None

    @property
    def cores(self) -> list[int]:
        """The cores of each rank."""
        return [rank.cores for rank in self.ranks]

    @property
    def fits(self) -> bool:
        """Whether every node has the memory."""
        return all(node.fits for node in self.memory)

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token, or to the result of a prompt without an answer."""
        return self.prefill.seconds * self.load.batch

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each further token; None without an answer."""
        return None if self.decode is None else self.decode.seconds

    @property
    def output_tokens_s(self) -> float | None:
        """Tokens per second of all sequences while they decode; None without an answer."""
        return None if self.decode is None else self.load.batch / self.decode.seconds


def _rank_machines(ranks: Sequence[RankCores], machine: Machine) -> list[RankMachine]:
    """Return the part of the machine that each rank has."""
    on_node = Counter[int]()
    for rank in ranks:
        on_node[rank.node] += len(rank.cpus)
    return [
        RankMachine(machine, len(rank.cpus), machine.node_read_gb_s * 1e9 * len(rank.cpus) / on_node[rank.node])
        for rank in ranks
    ]


def _prompt_steps(options: DeploymentOptions, config: ModelConfig, load: Load, tokens: int) -> list[StepWork]:
    """Return the steps of one prompt, of at most `tokens` tokens."""
    chunk = max(tokens, load.input_len if config.bidirectional else 0)
    pooled = options.settings.pooled
    return _with_rows(config, prefill_steps(load.input_len, chunk, pooled=pooled))


def _with_rows(config: ModelConfig, steps: Sequence[StepWork]) -> list[StepWork]:
    """Return the steps with the rows of logits that the model computes: only the last pipeline stage has a head."""
    return [replace(step, logit_rows=0) if config.decoder.head is None else step for step in steps]


def _step_sizes(
    options: DeploymentOptions, config: ModelConfig, load: Load, fits: Callable[[DeploymentOptions], bool]
) -> list[int]:
    """Return the numbers of tokens to choose a step's from: those that fit in memory, up to a step for the whole
    prompt."""
    sizes = [options.max_step_tokens]
    for tokens in longer_steps(options, config):
        if sizes[-1] < load.input_len and fits(replace(options, max_step_tokens=tokens)):
            sizes.append(tokens)
    return sizes


def make_estimate(
    options: DeploymentOptions,
    config: ModelConfig,
    topology: Topology,
    *,
    machine: Machine,
    efficiencies: Efficiencies,
    load: Load,
    skew: float = 0.0,
) -> Estimate:
    """Return the estimate. `skew`: of the routing to experts; see `CountedGroup`. Raises `OperatorError` for too few
    cores, too long a context, and formats that the checkpoint does not support."""
    context = options.context_length or load.context
    if max(context, load.context) > config.max_position:
        raise OperatorError(
            f"{max(context, load.context)} tokens exceed the model's context of {config.max_position}: lower"
            " --input-len, --output-len or --context-length"
        )
    placement = place(options, topology)
    ranks = placement.ranks
    shares = [len(rank.cpus) for rank in ranks]
    config.check_served()
    if options.settings.expert_parallel:
        check_experts(config, len(ranks))
    options = replace(options, draft=draft_options(options, config, shares))
    check_state_cache(options, config)
    partition = config.partition(shares, options.settings)
    machines = _rank_machines(ranks, machine)

    def memory_of(other: DeploymentOptions) -> list[NodeMemory]:
        return node_memory(other, config, topology, ranks, partition=partition, context=context)

    sizes = _step_sizes(options, config, load, lambda other: all(node.fits for node in memory_of(other)))
    longest = step_tokens(replace(options, max_step_tokens=sizes[-1]), config)
    phases = Phases(config, partition, machines, efficiencies, longest, skew)
    steps = [("prefill", _prompt_steps(options, config, load, tokens)) for tokens in sizes]
    if load.output_len:
        work = decode_step(load.batch, load.input_len + load.output_len // 2)
        steps.append(("decode", _with_rows(config, [work])))
    found = phases.estimate(steps)
    size, prefill = economical(sizes, found[: len(sizes)])
    options = replace(options, max_step_tokens=size)
    memory = memory_of(options)
    fits = all(node.fits for node in memory)
    return Estimate(
        machine,
        load,
        machines,
        memory,
        [] if fits else list(remedies(options, config, topology, ranks, partition=partition, context=context)),
        sizes,
        size,
        prefill,
        found[-1] if load.output_len else None,
        None if config.decoder.tower is None else phases.estimate_tile(config.decoder.tower),
        (*config.notes, *placement.notes, *activation_notes(partition), *adapter_notes(partition)),
        partition.multiplied_by(),
        None if config.bidirectional else _records(options, config, partition, context),
    )


def _records(options: DeploymentOptions, config: ModelConfig, partition: Partition, context: int) -> KvRecords:
    windows = full_window_pages(replace(options, context_length=context), config, full_pages(options, config, context))
    needs = rank_needs(options, config, partition)
    return kv_records(replace(options, context_length=context), config, needs, window_tables=bool(windows))
