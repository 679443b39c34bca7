"""The placement of each model on a part of the machine, decided before any model is loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from numaserve.server.gateway.models.models_file import ModelsFile, ModelSpec
from numaserve.server.gateway.models.residency import Claim
from numaserve.server.gateway.models.resident import Resident
from numaserve.server.images.types import ImageLimits
from numaserve.server.service.images import image_limits
from numaserve.server.service.model.by_model import with_model_defaults
from numaserve.server.service.model.deployment import deployment_options
from numaserve.server.service.model.model_argument import served_name
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.models.load import open_model, read_config
from numaserve.workers.planning.deployment import Deployment, make_deployment
from numaserve.workers.planning.needs import format_bytes
from numaserve.workers.planning.topology import Topology, format_cpu_list
from numaserve.workers.weights.hub import resolve_model


@dataclass(frozen=True)
class Placed:
    """A placed model: a model with its part of the machine."""

    spec: ModelSpec
    root: str  # path of the checkpoint
    part: Topology
    deployment: Deployment

    @property
    def own_name(self) -> str:
        """The model's own name: its hub id, or the name of its folder or file without the path."""
        return served_name(self.spec.config.model, Path(self.root))

    @property
    def context_length(self) -> int:
        """Maximum tokens of a sequence."""
        return self.deployment.capacity.context_length

    @property
    def images(self) -> ImageLimits | None:
        """The limits of the images of a request; None if the model takes no images."""
        return image_limits(self.spec.config) if self.deployment.capacity.feature_tiles else None

    @property
    def cpus(self) -> Sequence[int]:
        """The processors of the model process, second hyperthreads included."""
        return [cpu for node in self.part.nodes for cpu in (*node.cpus, *node.siblings_left_out)]

    @property
    def cores(self) -> frozenset[int]:
        """The model's cores, by their first hyperthreads."""
        return frozenset(cpu for node in self.part.nodes for cpu in node.cpus)

    @property
    def memory(self) -> dict[int, int]:
        """Bytes of memory of the model, by node."""
        taken: dict[int, int] = {}
        for rank in self.deployment.ranks:
            taken[rank.node] = taken.get(rank.node, 0) + rank.nbytes
        return taken

    @property
    def stays(self) -> bool:
        """Return whether the model must fit together with all other such models: it is loaded at start, or pinned."""
        return self.spec.place.pinned or self.spec.place.load == "start"


@dataclass(frozen=True)
class Plan:
    """All placed models. `capacity` is the bytes per node that they may take together.

    `cores` and `cpu_quota` are the machine's.
    """

    placed: Mapping[str, Placed]
    capacity: Mapping[int, int]
    cores: frozenset[int]
    cpu_quota: float | None = None

    @property
    def residents(self) -> dict[str, Resident]:
        """The models with their processors and claims, as the fleet takes them."""
        return {name: Resident(each.spec, each.cpus, _claim(each)) for name, each in self.placed.items()}


def plan_models(models: ModelsFile, machine: Topology, isa: str | None) -> Plan:
    """Place all models, for kernels of an instruction set. Raises `OperatorError` for a model that cannot be loaded,
    and as `check_together` does."""
    plan = place_models(models, machine, isa)
    check_together(plan, models.max_loaded)
    return plan


def place_models(models: ModelsFile, machine: Topology, isa: str | None) -> Plan:
    """Place each model as if it were alone. Raises `OperatorError` for a model that cannot be loaded."""
    placed = {}
    for name, spec in models.models.items():
        try:
            placed[name] = _place(spec, part_of(spec, machine), isa)
        except OperatorError as error:
            raise OperatorError(f"model '{name}': {error}") from None
    fraction = max(each.config.mem_fraction_static for each in models.models.values())
    capacity = {node.id: int(node.free_bytes * fraction) for node in machine.nodes}
    cores = frozenset(cpu for node in machine.nodes for cpu in node.cpus)
    return Plan(placed, capacity, cores, machine.cpu_quota)


def part_of(spec: ModelSpec, machine: Topology) -> Topology:
    """Return the nodes and cores of a model. Raises `OperatorError` for those that this process may not use."""
    place = spec.place
    if place.nodes is not None:
        missing = sorted(set(place.nodes) - {node.id for node in machine.nodes})
        if missing:
            there = ", ".join(str(node.id) for node in machine.nodes)
            raise OperatorError(
                f"nodes: NUMA node {missing[0]} is not available to this process. Available nodes: {there}"
            )
        return replace(machine, nodes=tuple(node for node in machine.nodes if node.id in place.nodes))
    if place.cores is None:
        return machine
    usable = {cpu for node in machine.nodes for cpu in node.cpus}
    missing = sorted(set(place.cores) - usable)
    if missing:
        raise OperatorError(
            f"cores: cores {format_cpu_list(missing)} are not available to this process. Available cores: "
            f"{format_cpu_list(usable)} (second hyperthreads do not count)"
        )
    parts = (
        replace(node, cpus=tuple(cpu for cpu in node.cpus if cpu in place.cores), siblings_left_out=())
        for node in machine.nodes
    )
    return replace(machine, nodes=tuple(part for part in parts if part.cpus))


def _place(spec: ModelSpec, part: Topology, isa: str | None) -> Placed:
    path = resolve_model(spec.config.model)
    files = open_model(path, spec.config.settings.mmproj)
    config = with_model_defaults(spec.config, files)
    options = deployment_options(config, path, isa)
    model = read_config(files, options.settings)
    return Placed(replace(spec, config=config), str(path), part, make_deployment(options, model, part))


def _claim(placed: Placed) -> Claim:
    place = placed.spec.place
    return Claim(placed.cores, placed.memory, place.pinned, place.idle_unload_s)


def check_together(plan: Plan, max_loaded: int | None) -> None:
    """Check that models which are loaded together fit, and that pinned models leave space for each other model.

    Raises `OperatorError` with what would fit.
    """
    staying = {name: each for name, each in plan.placed.items() if each.stays}
    pinned = {name: each for name, each in plan.placed.items() if each.spec.place.pinned}
    if max_loaded is not None:
        _check_count(max_loaded, staying, pinned, plan.placed)
    for (one, first), (other, second) in combinations(plan.placed.items(), 2):
        shared = first.cores & second.cores
        if shared and ((first.stays and second.stays) or one in pinned or other in pinned):
            raise OperatorError(_overlap(plan, one, other, shared))
    for node, capacity in plan.capacity.items():
        _check_memory(node, capacity, staying)
        for name, each in plan.placed.items():
            if name not in staying:
                _check_beside(name, each, node, capacity, pinned)
    threads = sum(len(rank.cpus) for each in staying.values() for rank in each.deployment.ranks)
    if plan.cpu_quota is not None and len(staying) > 1 and threads > max(len(staying), plan.cpu_quota):
        raise OperatorError(
            f"the models that are loaded together have {threads} cores, and the CPU quota is {plan.cpu_quota:.4g}: "
            "give the models fewer cores, or raise the quota"
        )


def _check_count(
    max_loaded: int, staying: Mapping[str, Placed], pinned: Mapping[str, Placed], placed: Mapping[str, Placed]
) -> None:
    if len(staying) > max_loaded:
        raise OperatorError(
            f"max-loaded is {max_loaded}, and {len(staying)} models are loaded at the start or pinned: raise "
            "max-loaded, or set load: request for some models"
        )
    never = next((name for name in placed if name not in pinned), None)
    if never is not None and len(pinned) >= max_loaded:
        raise OperatorError(
            f"max-loaded is {max_loaded} and the number of pinned models is {len(pinned)}, so model '{never}' could"
            f" never be loaded: raise max-loaded to {len(pinned) + 1} or more, or pin fewer models"
        )


def _overlap(plan: Plan, one: str, other: str, shared: frozenset[int]) -> str:
    taken: set[int] = set().union(*(each.cores for name, each in plan.placed.items() if name != other and each.stays))
    free = format_cpu_list(plan.cores - taken)
    both = f"models '{one}' and '{other}' would both be loaded on cores {format_cpu_list(shared)}"
    if free:
        return (
            f"{both}, and model '{other}' would fit on cores {free}: give each model its own nodes or cores, or set "
            "load: request without pinned so that one model replaces the other"
        )
    return (
        f"{both}, and no core is left for model '{other}': give each model its own nodes or cores, or set load: "
        "request without pinned so that one model replaces the other"
    )


def _check_memory(node: int, capacity: int, staying: Mapping[str, Placed]) -> None:
    there = {name: each for name, each in staying.items() if each.memory.get(node)}
    needed = sum(each.memory[node] for each in there.values())
    if needed <= capacity:
        return
    each = ", ".join(f"'{name}' {format_bytes(placed.memory[node])}" for name, placed in there.items())
    raise OperatorError(
        f"on node {node} the models that are loaded together take {format_bytes(needed)} ({each}), and "
        f"{format_bytes(capacity)} are available: give some models less memory or another node, or set load: request"
    )


def _check_beside(name: str, placed: Placed, node: int, capacity: int, pinned: Mapping[str, Placed]) -> None:
    """Raise `OperatorError` if the pinned models leave too little memory on `node` for a model loaded on request."""
    needed = placed.memory.get(node, 0)
    there = [other for other, each in pinned.items() if each.memory.get(node)]
    left = capacity - sum(pinned[other].memory[node] for other in there)
    if needed <= left or not there:
        return
    beside = ", ".join(f"'{other}'" for other in there)
    raise OperatorError(
        f"on node {node} model '{name}' takes {format_bytes(needed)}, and the pinned models {beside} leave "
        f"{format_bytes(max(0, left))}, so the model could never be loaded: give it less memory or another node, or "
        "pin fewer models"
    )
