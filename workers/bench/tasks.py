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


Task = RunSteps | LoadModel | UseRing


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


class Status(msgspec.Struct, frozen=True, tag="status"):
    """The progress of a rank."""

    text: str


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The reason why a rank ends without an answer, where the operator can remove it."""

    message: str


Answer = StepsRan | Loaded | Reduced
Line = Answer | Status | Failed
