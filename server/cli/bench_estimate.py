"""The estimate of the steps of ``numaserve bench offline``, from the ceilings measured around them."""

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.workers.bench.tasks import MeasuredPhase
from numaserve.workers.interface.protocol import Launch
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning.roofline.efficiency import Efficiencies
from numaserve.workers.planning.roofline.machine import machine_of
from numaserve.workers.planning.roofline.phases import RankMachine, decode_step, prefill_steps
from numaserve.workers.planning.simulation.phases import Phases
from numaserve.workers.planning.topology import Topology


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
        config, launch, first = self.config, self.launch, ranks[0]
        step_tokens = launch.capacity.max_step_tokens
        partition = config.partition([rank.cores for rank in machines], launch.settings)
        phases = Phases(config, partition, machines, self.efficiencies, step_tokens)
        if first.name == "prefill":
            prompt = prefill_steps(self.input_len, step_tokens)
            return phases.estimate([(first.name, prompt)])[0].seconds * first.batch
        step = decode_step(first.batch, self.input_len + self.output_len // 2)
        return phases.estimate([(first.name, [step])])[0].seconds
