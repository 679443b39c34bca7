"""The estimate of a model in pipeline stages on several hosts: the memory of each host, and the time of all stages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.estimate import Estimate, Load, make_estimate
from numaserve.workers.planning.links import Link
from numaserve.workers.planning.options import DeploymentOptions
from numaserve.workers.planning.roofline.efficiency import Efficiencies
from numaserve.workers.planning.roofline.machine import Machine
from numaserve.workers.planning.stages import check_stages, of_a_stage, place_on_hosts
from numaserve.workers.planning.topology import Topology
from numaserve.workers.program.cost import FP32


@dataclass(frozen=True)
class StageHost:
    """The host of a stage, and the options of a server there, whose `pp` is the number of hosts."""

    options: DeploymentOptions
    topology: Topology
    machine: Machine
    efficiencies: Efficiencies


@dataclass(frozen=True)
class PipelineEstimate:
    """The estimate of a load on several hosts, each of which has one stage.

    `stages` have the estimates of a cohort in each stage. Cohorts are disjoint parts of the batch, each with a step in
    flight: a stage works on one while other stages work on the others. `layers` is the number of layers of each stage.
    A token's row of the residual stream has `row_bytes`; each rank sends it to the rank of its number in the next
    stage.
    """

    load: Load
    link: Link
    stages: Sequence[Estimate]
    layers: Sequence[int]
    row_bytes: int

    @property
    def fits(self) -> bool:
        """Whether every host has the memory."""
        return all(stage.fits for stage in self.stages)

    @property
    def cohorts(self) -> int:
        """The number of steps in flight while sequences generate."""
        return -(-self.load.batch // self.stages[0].load.batch)

    @property
    def ranks(self) -> int:
        """The number of ranks of each stage."""
        return len(self.stages[0].cores)

    @property
    def token_bytes(self) -> int:
        """The bytes that all ranks of a stage together send for a token."""
        return self.ranks * self.row_bytes

    @property
    def chunks(self) -> Sequence[int]:
        """The tokens of each step of a prompt."""
        size, tokens = self.stages[0].step_tokens, self.load.input_len
        return [min(size, tokens - start) for start in range(0, tokens, size)]

    @property
    def prompt_s(self) -> float:
        """Seconds from the first step of a prompt on the first host until the sample has come from the last host.

        Chunks follow each other: a stage or a link begins one when it has ended the chunk before, and when the stage
        before has ended this one.
        """
        ready = [0.0] * len(self.chunks)
        for index, stage in enumerate(self.stages):
            ready = _in_order(ready, stage.prefill.step_seconds)
            if index < len(self.stages) - 1:
                sent = _in_order(ready, [self._busy_s(tokens) for tokens in self.chunks])
                more = [self.hop_s(tokens) - self._busy_s(tokens) for tokens in self.chunks]
                ready = list(map(float.__add__, sent, more))
        return ready[-1] + self.link.latency_s

    @property
    def _slowest_prompt_s(self) -> float:
        """Seconds of a prompt on the host or link that needs most for it: the time of each of many prompts."""
        link = sum(self._busy_s(tokens) for tokens in self.chunks)
        return max(link, *(stage.prefill.seconds for stage in self.stages))

    @property
    def ttft_s(self) -> float:
        """Seconds to the first token of the last prompt of the batch; prompts follow each other closely."""
        return self.prompt_s + (self.load.batch - 1) * self._slowest_prompt_s

    @property
    def prefill_tokens_s(self) -> float:
        """Tokens per second of many prompts that follow each other closely."""
        return self.load.input_len / self._slowest_prompt_s

    @property
    def hops_s(self) -> float:
        """Seconds of a decode step on links: its rows from host to host, and the samples back to the first one."""
        return (len(self.stages) - 1) * self.hop_s(self.stages[0].load.batch) + self.link.latency_s

    @property
    def pass_s(self) -> float | None:
        """Seconds of a decode step of one cohort through all stages, if each is idle; None without an answer."""
        steps = self._decode_s()
        return sum(steps) + self.hops_s if steps else None

    @property
    def tpot_s(self) -> float | None:
        """Seconds for each further token of a sequence; None without an answer.

        The cohorts pass the slowest host one after the other, and a cohort passes all hosts one after the other.
        """
        passed, steps = self.pass_s, self._decode_s()
        if passed is None:
            return None
        return max(passed, self.cohorts * max(*steps, self._busy_s(self.stages[0].load.batch)))

    @property
    def output_tokens_s(self) -> float | None:
        """Tokens per second of all sequences while they decode; None without an answer."""
        return None if self.tpot_s is None else self.load.batch / self.tpot_s

    def hop_s(self, tokens: int) -> float:
        """Return the seconds that the rows of a step of `tokens` tokens take from one host to the next."""
        return self.link.seconds(tokens * self.row_bytes, self.ranks)

    def _busy_s(self, tokens: int) -> float:
        return self.link.busy_s(tokens * self.row_bytes, self.ranks)

    def _decode_s(self) -> list[float]:
        return [stage.decode.seconds for stage in self.stages if stage.decode is not None]


def make_pipeline_estimate(
    hosts: Sequence[StageHost], config: ModelConfig, *, load: Load, link: Link, skew: float = 0.0
) -> PipelineEstimate:
    """Return the estimate of a model whose stages run on `hosts`, in their order.

    Raises `OperatorError` for more hosts than layers, for hosts with different instruction sets or numbers of ranks,
    and for options and models that stages cannot have.
    """
    count = len(hosts)
    cohort = replace(load, batch=-(-load.batch // count))
    check_stages(hosts[0].options)
    _check_instruction_sets(hosts)
    place_on_hosts(hosts[0].options, [host.topology for host in hosts])
    parts = [config.staged(stage, count) for stage in range(count)]
    found = []
    for host, part in zip(hosts, parts, strict=True):
        found.append(
            make_estimate(
                replace(of_a_stage(host.options), pp=1),
                part,
                host.topology,
                machine=host.machine,
                efficiencies=host.efficiencies,
                load=cohort,
                skew=skew,
            )
        )
    return PipelineEstimate(load, link, found, [part.num_layers for part in parts], FP32 * config.hidden_size)


def _check_instruction_sets(hosts: Sequence[StageHost]) -> None:
    found = list(dict.fromkeys(host.machine.isa for host in hosts))
    if len(found) > 1:
        raise OperatorError(
            f"the hosts have the instruction sets {', '.join(found)}, and all stages need the same: name hosts with"
            " the same isa"
        )


def _in_order(ready: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """Return when each of some steps ends that take `seconds` and are `ready` at these times, one after the other."""
    free, ended = 0.0, list[float]()
    for begin, taken in zip(ready, seconds, strict=True):
        free = max(begin, free) + taken
        ended.append(free)
    return ended
