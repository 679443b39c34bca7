"""A host in the roofline model: the best rates at which its cores read, compute and exchange."""

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from numaserve.configs import hosts
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import SETTINGS_BYTES, read_text
from numaserve.workers.interface.protocol import Ceilings
from numaserve.workers.planning.needs import GIB
from numaserve.workers.planning.topology import HugePages, Node, Topology
from numaserve.workers.program.handles import INTEGER_GROUPS
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

Positive = Annotated[float, Field(gt=0)]
Isa = Literal["amx", "avx512"]  # instruction sets with shipped efficiencies
INT8_FORMATS = INTEGER_GROUPS | {"int8"}  # multiplied in int8, unless widened to bf16
# The peak of fp32, which registers multiply without tiles, as a fraction of that of bf16.
_FP32_OF_BF16: dict[Isa, float] = {"amx": 1 / 16, "avx512": 1 / 2}
# A meeting is a barrier over ranks: it passes a few more cache lines, which may lie on another node.
_MEETING_BARRIERS = 4


def with_dashes(name: str) -> str:
    """Return the key of a field in files."""
    return name.replace("_", "-")


class Machine(BaseModel):
    """A host, or one socket of it. Keys in files have dashes."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=with_dashes, populate_by_name=True)

    name: str = Field(min_length=1)
    isa: Isa = "avx512"  # selects the efficiencies
    node_cores: Annotated[list[Annotated[int, Field(ge=1)]], Field(min_length=1)]  # of each NUMA node
    node_memory_gib: Positive
    node_read_gb_s: Positive  # from its own memory, all its cores together
    core_read_gb_s: Positive | None = None  # of one core alone; as much as its node if it is not known
    core_gflop_s: dict[Literal["bf16", "int8"], Positive]
    link_gb_s: Positive  # rate at which one node fetches from others while all nodes do so
    meeting_us: Positive  # a meeting of all ranks
    barrier_us: Positive  # a barrier of a node's threads

    @field_validator("core_gflop_s")
    @classmethod
    def _has_both(cls, value: dict[str, float]) -> dict[str, float]:
        if len(value) != 2:
            raise ValueError("must have both keys, bf16 and int8")
        return value

    def peak(self, cores: int, computes: str) -> float:
        """Return the operations per second of some cores, on operands of that format."""
        if computes == "fp32":
            return self.core_gflop_s["bf16"] * _FP32_OF_BF16[self.isa] * cores * 1e9
        return self.core_gflop_s["int8" if computes in INT8_FORMATS else "bf16"] * cores * 1e9

    def core_read_bytes_s(self, node_bytes_s: float) -> float:
        """Return the bytes per second that one core reads at most, of a node that reads `node_bytes_s`."""
        return node_bytes_s if self.core_read_gb_s is None else min(self.core_read_gb_s * 1e9, node_bytes_s)

    def topology(self) -> Topology:
        """Return the topology, as if all memory were free and this process might use all of it."""
        first, nodes = 0, []
        for index, cores in enumerate(self.node_cores):
            memory = int(self.node_memory_gib * GIB)
            nodes.append(Node(index, tuple(range(first, first + cores)), (), memory, memory))
            first += cores
        return Topology(tuple(nodes), None, HugePages("always", ()), None)


def isa_of(kernels: str) -> Isa:
    """Return the instruction set whose efficiencies apply to a set of kernels: there are none for AVX2."""
    return "amx" if kernels.startswith("amx") else "avx512"


def machine_of(ceilings: Ceilings, topology: Topology, barrier_us: float) -> Machine:
    """Return the machine at hand, with the ceilings of one node.

    If no format that is multiplied in int8 was measured, none is used.
    """
    bf16 = ceilings.flops_s["bf16"]
    int8 = next((flops for format, flops in ceilings.flops_s.items() if format in INT8_FORMATS), bf16)
    return Machine(
        name=f"this machine ({ceilings.isa})",
        isa=isa_of(ceilings.isa),
        node_cores=[len(node.cpus) for node in topology.nodes],
        node_memory_gib=min(node.free_bytes for node in topology.nodes) / GIB,
        node_read_gb_s=ceilings.read_rate / 1e9,
        core_gflop_s={"bf16": bf16 / ceilings.threads / 1e9, "int8": int8 / ceilings.threads / 1e9},
        link_gb_s=ceilings.read_rate / 1e9,
        meeting_us=_MEETING_BARRIERS * barrier_us,
        barrier_us=barrier_us,
    )


def load_machine(name: str) -> Machine:
    """Return the host that ships with that name, or that the file describes. Raises `OperatorError` with one line that
    states the error."""
    path = Path(name) if Path(name).suffix in (".yaml", ".yml") else hosts().get(name)
    if path is None:
        raise OperatorError(f"--host {name}: unknown host; expected this, {', '.join(hosts())}, or a .yaml file")
    try:
        return Machine.model_validate(_read(path))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        keys = ", ".join(with_dashes(each) for each in Machine.model_fields)
        hint = f"unknown key; the keys are {keys}" if first["type"] == "extra_forbidden" else first["msg"]
        raise OperatorError(f"{path}: {key}: {hint}") from None


def _read(path: Path) -> Any:
    try:
        return yaml.safe_load(read_text(path, SETTINGS_BYTES))
    except (yaml.YAMLError, RecursionError) as error:
        raise OperatorError(f"{path} is not a YAML file: {' '.join(str(error).split())}") from None
