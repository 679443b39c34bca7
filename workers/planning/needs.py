"""The memory that each rank of a deployment needs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from numaserve.workers.interface.protocol import PAGE_SIZE
from numaserve.workers.interface.step_lengths import LONGER_STEPS
from numaserve.workers.layers.parameters import Parameter
from numaserve.workers.layers.partition import Partition, RankPart
from numaserve.workers.models.spec import ModelConfig
from numaserve.workers.planning import reference
from numaserve.workers.planning.images import ImageMemory, image_memory, tower_message
from numaserve.workers.planning.options import DeploymentOptions, DraftOptions
from numaserve.workers.planning.states import draft_bytes
from numaserve.workers.program.handles import MATRIX_PAD, round_up
from numaserve.workers.program.ops.adapters import shrunk_columns

MIB = 1 << 20
GIB = 1 << 30
RING_SLOTS = 3
LOGIT_ROWS_UNIT = 16
MIN_LOGIT_ROWS = 64
PROCESS_BYTES = 256 * MIB  # interpreter, libraries and message buffers of a worker
MEMORY_PAGE = 4096


@dataclass(frozen=True)
class RankNeeds:
    """Bytes that each rank needs, by rank: for weights, for scratch, for the recurrent states of all slots, for a
    snapshot of those of one slot, for a page of KV cache, and for image input. `per_window_page` has the part of a page
    of the layers with each window, by window and rank."""

    weights: list[int]
    scratch: list[int]
    states: list[int]
    per_snapshot: list[int]
    per_page: list[int]
    images: list[ImageMemory]
    per_window_page: Sequence[list[int]] = ()

    @property
    def parts(self) -> tuple[list[int], ...]:
        """The lists of all kinds of memory, but for image input and the parts of a page."""
        return self.weights, self.scratch, self.states, self.per_snapshot, self.per_page

    @property
    def fixed(self) -> list[int]:
        """The memory of each rank besides caches."""
        images = [each.besides_weights for each in self.images]
        return [sum(each) for each in zip(self.weights, self.scratch, self.states, images, strict=True)]

    def state_bytes(self, rank: int, num_snapshots: int) -> int:
        """Return the memory of a rank for the states of slots and snapshots."""
        return self.states[rank] + num_snapshots * self.per_snapshot[rank]

    def kv_bytes(self, rank: int, table_pages: Sequence[int]) -> int:
        """Return the memory of a rank for the pages of each table; see `Capacity.table_pages`."""
        return kv_bytes(self.per_page[rank], [each[rank] for each in self.per_window_page], table_pages)

    def snapshots_in(self, gib: float) -> int:
        """Return the number of snapshots that all ranks together store in memory of that size."""
        total = sum(self.per_snapshot)
        return int(gib * GIB) // total if total else 0


def kv_bytes(page: int, window_parts: Sequence[int], table_pages: Sequence[int]) -> int:
    """Return the memory of the pages of each table. `window_parts` are the bytes of the layers with each window in the
    `page` bytes of a page of all layers."""
    common, *of_windows = table_pages
    if not of_windows:
        return page * common
    in_windows = sum(part * pages for part, pages in zip(window_parts, of_windows, strict=True))
    return (page - sum(window_parts)) * common + in_windows


def max_logit_rows(options: DeploymentOptions) -> int:
    """Return the rows of logits that one step may produce: one per running request and, with drafters, one more for a
    draft token of each. Fewer requests may have more draft tokens."""
    rows = options.max_running_requests * (2 if options.drafts else 1)
    return round_up(max(rows, MIN_LOGIT_ROWS), LOGIT_ROWS_UNIT)


def format_bytes(nbytes: int) -> str:
    """Return bytes as text for an operator, in MiB below one GiB."""
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes / MIB:.0f} MiB"


def shared_step_tokens(options: DeploymentOptions) -> int:
    """Return the most tokens of a step with several sequences: at least one for every running request."""
    return max(options.max_step_tokens, options.max_running_requests)


def with_whole_images(options: DeploymentOptions, model: ModelConfig) -> DeploymentOptions:
    """Return the options with steps that have space for a token of every running request and for an image, where the
    rows of an image must be in one step."""
    if model.images is None or not model.images.whole:
        return options
    least = options.max_running_requests + model.images.rows_per_tile
    return replace(options, max_step_tokens=max(options.max_step_tokens, least))


def step_tokens(options: DeploymentOptions, model: ModelConfig) -> int:
    """Return the most tokens of a step. A bidirectional model computes its longest prompt in one step."""
    shared = shared_step_tokens(options)
    return max(shared, options.context_length or model.max_position) if model.bidirectional else shared


def longer_steps(options: DeploymentOptions, model: ModelConfig) -> Sequence[int]:
    """Return the numbers of tokens that a step may have instead of `max_step_tokens`, in ascending order. The reference
    backend takes more memory for longer steps than is counted."""
    return (
        LONGER_STEPS if options.may_lengthen_steps and options.backend == "native" and not model.bidirectional else ()
    )


def full_pages(options: DeploymentOptions, model: ModelConfig, context: int) -> int:
    """Return the pages of KV cache with sequences of `context` tokens in all slots, and a spare one. A bidirectional
    model needs the pages of one step, the longest or the one with most prompts, since no later step reads them."""
    slots = options.max_running_requests
    if not model.bidirectional:
        return slots * pages_of(context) + 1
    partly_filled = min(slots, shared_step_tokens(options)) * (PAGE_SIZE - 1)
    return max(pages_of(context), (shared_step_tokens(options) + partly_filled) // PAGE_SIZE) + 1


def _logit_rows(options: DeploymentOptions) -> int:
    """Return the rows of logits that memory is needed for."""
    return 0 if options.settings.pooled else max_logit_rows(options)


def ring_slot_bytes(options: DeploymentOptions, model: ModelConfig, partition: Partition) -> int:
    """Return the size of the largest message of a step, in fp32: the residual stream of all tokens or of a tile's
    patches, a rank's part of a layer's result for the others, its logits, or its part of vectors. A draft model has
    these messages, too."""
    if options.draft is not None:
        own = ring_slot_bytes(replace(options, draft=None), model, partition)
        return max(own, ring_slot_bytes(*_of_draft(options, options.draft, partition)))
    return message_bytes(
        model, partition, step_tokens(options, model), _logit_rows(options), options.max_running_requests
    )


def message_bytes(model: ModelConfig, partition: Partition, tokens: int, logit_rows: int, pooled: int) -> int:
    """Return the size of the largest message of a step with these numbers of tokens, of rows of logits and of pooled
    sequences; see `ring_slot_bytes`."""
    decoder = model.decoder
    columns = max(model.hidden_size, *(decoder.message_columns(part) for part in partition.ranks))
    vocabulary = max(map(len, partition.ranges(decoder.embedding.axis)))
    vectors = max(map(decoder.pooled_message_columns, partition.ranks))
    sizes = (tokens, columns), (logit_rows, vocabulary), (pooled, vectors), tower_message(model, partition)
    padded = (round_up(rows, MATRIX_PAD) * round_up(wide, MATRIX_PAD) for rows, wide in sizes)
    return round_up(4 * max(padded), MEMORY_PAGE)


def rank_needs(options: DeploymentOptions, model: ModelConfig, partition: Partition) -> RankNeeds:
    """Return the memory that each rank needs, including its draft model. Raises `OperatorError` for formats that the
    checkpoint does not support."""
    if options.draft is not None:
        served = rank_needs(replace(options, draft=None), model, partition)
        draft = rank_needs(*_of_draft(options, options.draft, partition))
        weights, scratch, states, snapshot, page = (
            list(map(int.__add__, *each)) for each in zip(served.parts, draft.parts, strict=True)
        )
        return RankNeeds(weights, scratch, states, snapshot, page, served.images, served.per_window_page)
    slot_bytes = ring_slot_bytes(options, model, partition) if partition.world_size > 1 else 0
    # Besides the ring's slots: the queries of all ranks' heads, which are narrower than the results that a slot has for
    # the same sequences.
    exchanged = RING_SLOTS * slot_bytes + (slot_bytes if model.decoder.shares_queries else 0)
    ranks, dtype = partition.ranks, options.settings.kv_cache_dtype
    expands = options.backend == "reference"
    fixed = PROCESS_BYTES + exchanged + _rope_bytes(options, model) + (reference.TORCH_BYTES if expands else 0)
    return RankNeeds(
        weights=[_weight_bytes(part, expands=expands) for part in ranks],
        scratch=[fixed + _slot_bytes(options, model, part) + _activation_bytes(options, model, part) for part in ranks],
        states=[options.max_running_requests * _states_of_slot(options, model, part) for part in ranks],
        per_snapshot=[model.decoder.snapshot_bytes(part) for part in ranks],
        per_page=[reference.page_bytes(model, part, options.backend, dtype) for part in ranks],
        images=[image_memory(model, part, options.image_store_bytes) for part in ranks],
        per_window_page=[
            list(each)
            for each in zip(
                *(reference.window_page_bytes(model, part, options.backend, dtype) for part in ranks), strict=True
            )
        ],
    )


def _of_draft(
    options: DeploymentOptions, draft: DraftOptions, partition: Partition
) -> tuple[DeploymentOptions, ModelConfig, Partition]:
    """Return the draft model's options as if the same ranks served it alone. Some scratch is counted twice: an upper
    bound."""
    alone = replace(options, model=draft.model, settings=draft.settings, draft=None)
    return alone, draft.config, draft.config.partition(partition.shares, draft.settings)


def _weight_bytes(part: RankPart, *, expands: bool) -> int:
    """Return the memory of a rank's matrices, with that for adapters of them."""
    expanded = reference.expanded_bytes(part) if expands else 0
    return part.weight_bytes() + part.adapter_bytes() + expanded


def _states_of_slot(options: DeploymentOptions, model: ModelConfig, part: RankPart) -> int:
    return model.decoder.state_bytes(part) + draft_bytes(options, model, part)


def _slot_bytes(options: DeploymentOptions, model: ModelConfig, part: RankPart) -> int:
    """Return the memory of all slots besides pages and recurrent states."""
    decoder = model.decoder
    return (decoder.slot_bytes(part) - decoder.state_bytes(part)) * options.max_running_requests


def _rope_bytes(options: DeploymentOptions, model: ModelConfig) -> int:
    """Return the memory of the tables of rotary embeddings, which have rows for whole pages. A default context that
    memory shortens needs less."""
    positions = pages_of(options.context_length or model.max_position) * PAGE_SIZE
    return sum(rope.table_bytes(positions) for rope in model.decoder.ropes)


def _activation_bytes(options: DeploymentOptions, model: ModelConfig, part: RankPart) -> int:
    """Return an upper bound of a step's intermediate results, as if no two of them shared memory."""
    tokens, decoder = step_tokens(options, model), model.decoder
    per_token = 4 * (3 * model.hidden_size + decoder.scratch_columns(part) + _shrunk_columns(model, part))
    # Rank 0 gathers the logits of all ranks.
    columns = model.vocab_size if part.rank == 0 else len(part.along(decoder.embedding.axis))
    programs = 1 if decoder.predictor is None else 2
    logits = programs * 2 * 4 * _logit_rows(options) * columns
    return tokens * per_token + logits + 4 * options.max_running_requests * decoder.pooled_columns(part)


def _shrunk_columns(model: ModelConfig, part: RankPart) -> int:
    """Return the columns that the adapters of the block with most have between their two products."""
    columns: dict[Parameter, int] = {matrix: shrunk_columns(each) for matrix, each in part.adapters()}
    blocks = (sum(columns.get(each, 0) for each in block.parameters()) for block in model.decoder.blocks)
    return max(blocks) if columns else 0


def pages_of(tokens: int) -> int:
    """Return the pages of KV cache that a sequence takes."""
    return -(-tokens // PAGE_SIZE)
