"""Options of a deployment."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from numaserve.workers.interface.protocol import WeightsCache
from numaserve.workers.interface.settings import DEFAULT_SETTINGS, Backend, ModelSettings
from numaserve.workers.models.spec import ModelConfig


@dataclass(frozen=True)
class DraftOptions:
    """The options of a draft model."""

    model: str  # the folder or .gguf file that the workers open
    config: ModelConfig
    settings: ModelSettings


@dataclass(frozen=True)
class DeploymentOptions:
    """The operator's options. None leaves the choice to `make_deployment`."""

    model: str  # the folder or .gguf file that the workers open
    max_running_requests: int  # slots
    max_step_tokens: int  # prompt and output tokens in one step
    mem_fraction_static: float
    step_deadline_s: float
    tp: int | None = None
    pp: int = 1  # pipeline stages
    threads_per_worker: int | None = None
    reserve_core: bool = False
    context_length: int | None = None
    may_run_fewer: bool = False  # whether `max_running_requests` is a default, lowered where states take much memory
    may_lengthen_steps: bool = False  # whether `max_step_tokens` is a default, raised where that takes little memory
    kv_cache_gib: float | None = None  # of all ranks together
    state_cache_gib: float | None = None  # for snapshots of recurrent states, of all ranks together
    memory_bytes: int | None = None  # for weights, scratch, states and KV cache of all ranks together
    settings: ModelSettings = DEFAULT_SETTINGS
    weights_cache: WeightsCache | None = None
    blocking: Mapping[str, int] = field(default_factory=dict)  # block sizes of products; empty: the kernels choose
    backend: Backend = "native"
    image_store_bytes: int = 0  # pixels of images, if the model reads images
    draft: DraftOptions | None = None
    drafter: str = ""  # the drafter in the workers; empty: none
    drafts: bool = False  # whether steps verify draft tokens
    prefix_cache: bool = True  # whether sequences continue from cached pages of others
    window_tables: bool = True  # whether layers with a window may have pages of their own
