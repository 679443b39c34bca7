"""The estimate of the steps of ``numaserve bench offline``, from the ceilings measured around them."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.bench.tasks import MeasuredPhase
from numaserve.workers.interface.protocol import Launch
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.roofline.efficiency import Efficiencies
from numaserve.workers.planning.roofline.estimate import make_roofline
from numaserve.workers.planning.roofline.machine import machine_of
from numaserve.workers.planning.roofline.phases import RankMachine, decode_step, prefill_steps
from numaserve.workers.planning.topology import Topology
from numaserve.workers.program.cost import StepWork


@dataclass(frozen=True)
class RunEstimate:
    """The estimate of a run: prompts of `input_len` tokens and answers of `output_len`."""

    launch: Launch
    config: ModelConfig
    topology: Topology
    efficiencies: Efficiencies
    input_len: int
    output_len: int

    def seconds(self, ranks: Sequence[MeasuredPhase]) -> float:
        """Return the seconds of one repetition of a phase that all `ranks` measured: the batch's prompts, or a step."""
        barrier_us = self.efficiencies.barrier_s * 1e6
        machines = [
            RankMachine(
                machine_of(each.ceilings, self.topology, barrier_us), each.ceilings.threads, each.ceilings.read_rate
            )
            for each in ranks
        ]
        roofline = make_roofline(self.launch, self.config, machines, self.efficiencies)
        return roofline.phase(ranks[0].name, self._steps(ranks[0])).seconds

    def _steps(self, phase: MeasuredPhase) -> list[StepWork]:
        if phase.name == "prefill":
            return prefill_steps(self.input_len, self.launch.max_step_tokens) * phase.batch
        return [decode_step(phase.batch, self.input_len + self.output_len // 2)]
