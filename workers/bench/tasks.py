"""Tasks of a benchmark's ranks, and their answers: JSON lines on standard input and output."""

import msgspec
from numaserve.workers.interface.protocol import Ceilings, Launch, RankProfile, WeightsOrigin


class RunSteps(msgspec.Struct, frozen=True, tag="steps"):
    """Load a model and run prompts of `input_len` and `output_len` further tokens, in batches of each size."""

    launch: Launch
    batch_sizes: list[int]
    input_len: int
    output_len: int
    prefills: int  # repetitions of the prompts


class LoadModel(msgspec.Struct, frozen=True, tag="load"):
    """Load a model, keep it in the cache of packed weights if the launch names one, and end."""

    launch: Launch


class UseRing(msgspec.Struct, frozen=True, tag="ring"):
    """Reduce messages of some sizes (bytes) over the ring, and with torch.distributed too if there is a `store`."""

    rank: int
    world_size: int
    cpu: int
    node: int
    ring_fd: int
    ring_nonce: int
    sizes: list[int]
    seconds: float  # for each size and way
    store: str | None  # a path where gloo's ranks find each other


class UseNode(msgspec.Struct, frozen=True, tag="node"):
    """Measure the cores and memory of a node, in phases that begin when the ranks of all nodes have met."""

    rank: int
    cpus: list[int]
    nodes: list[int]  # the memory of each rank
    ring_fd: int
    ring_nonce: int
    nbytes: int  # that are read
    passes: int


class PassLines(msgspec.Struct, frozen=True, tag="lines"):
    """Pass a cache line back and forth between the processors of each pair."""

    pairs: list[tuple[int, int]]


Task = RunSteps | LoadModel | UseRing | UseNode | PassLines


class MeasuredPhase(msgspec.Struct, frozen=True):
    """Steps of one kind on one rank, between two profiles. The rank's ceilings are measured before and after, while the
    other ranks measure theirs."""

    name: str  # prefill or decode
    batch: int
    seconds: list[float]  # of each repetition: all prompts of the batch, or one more token for each
    before: RankProfile
    after: RankProfile
    ceilings: Ceilings


class StepsRan(msgspec.Struct, frozen=True, tag="steps"):
    """A rank's answer to `RunSteps`."""

    isa: str
    weight_bytes: int
    phases: list[MeasuredPhase]


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """A rank's answer to `LoadModel`."""

    seconds: float
    origin: WeightsOrigin
    import_seconds: float  # before loading, for libraries that the format needs
    weight_bytes: int


class Reduced(msgspec.Struct, frozen=True, tag="reduced"):
    """A rank's answer to `UseRing`: median microseconds of the slowest rank by name of the way, for each size."""

    read_bytes_s: float
    median_us: list[dict[str, float]]


class NodeRates(msgspec.Struct, frozen=True, tag="node"):
    """A rank's answer to `UseNode`."""

    ceilings: Ceilings
    core_read_bytes_s: float  # of one core, while the others of its node are idle
    barrier_us: float
    remote_bytes_s: list[float | None]  # from the memory of each rank's node; None for its own, and where unbound
    refusal: str  # the reason why memory cannot be bound to nodes; empty if it can


class LinesPassed(msgspec.Struct, frozen=True, tag="lines"):
    """The answer to `PassLines`: nanoseconds of one way, for each pair."""

    ns: list[float]


class Status(msgspec.Struct, frozen=True, tag="status"):
    """The progress of a rank."""

    text: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The reason why a rank ends without an answer, where the operator can remove it."""

    message: str


Answer = StepsRan | Loaded | Reduced | NodeRates | LinesPassed
Line = Answer | Status | Failed
