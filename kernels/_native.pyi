"""The kernels' native module. Arrays must be C-contiguous and in processor memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from numaserve.shm_comm import Board, Progress, Ring

# Constants that Python and C++ share.
PAD: int  # rows and columns of matrices are padded to a multiple of this
ROW_BLOCK: int  # rows that a matrix product takes through the weights together
TILE_ROWS: int  # of weights or of activations
TILE_COLUMNS: int  # of bf16
INT8_TILE_COLUMNS: int
CACHE_LINE: int  # bytes
GROUP_SCALE_BYTES: int  # of each group, after a row of quantized activations
PAGE_TOKENS: int
ATTENTION_BLOCK: int  # tokens whose softmax is computed at once
ATTENTION_ROWS: int  # query rows that attention takes together at most
PARTIAL_SEQUENCES: int  # the longest sequences, whose blocks can each be computed by itself
PARTIAL_EXTRA: int  # floats after the values of a partial attention result
SCALE_COLUMNS: int  # of a state of the gated delta rule that share a scale
MAX_HEAD_DIM: int  # or values of a latent
MAX_LATENT_DIM: int  # values and rotated part
MAX_KEY_DIM: int  # of the gated delta rule
MAX_CONV_TAPS: int  # tokens that a convolution combines
MAX_EXPERTS: int  # of a layer
MAX_TOP_K: int  # experts of a token
MAX_MASKED_DRAFTS: int  # of a sequence in a step
MAX_LOGPROBS: int  # most likely tokens that are reported
SIGMOID_GAIN: float  # of swiglu_oai
ONE_SHOT_BYTES: int  # beyond which each of more than two ranks sums a share
OVERLAPPED_ROWS: int  # from which on more than two ranks sum results of a product while they compute it
PIECE_COLUMNS: int  # of the results that a lane sums at once
CHECKSUM_UNIT: int  # bytes

# Bytes offset in the arena, elements from row to row, number of the collective in a step (-1: none).
Place = tuple[int, int, int]
# And columns, and how many of them share a scale (0: all).
QuantizedPlace = tuple[Place, int, int]
# Bytes from the node's memory, bytes of activations, bytes of other ranks' parts, operations.
_Work = tuple[int, int, int, int]
# Token, its log-probability, the most likely tokens and theirs.
Logprobs = tuple[int, float, list[int], list[float]]

def available_isas() -> list[str]:
    """Return the instruction sets that can run on this machine, best first."""

def unbuilt_isa() -> str:
    """Return the best instruction set of this processor, if it is better than all that this build has; else ""."""

def isa() -> str:
    """Return the instruction set in use: the best available one, or the one that NUMASERVE_ISA names.

    Raises ValueError for an unknown name, RuntimeError when this build lacks it or the machine cannot run it.
    """

def read_bandwidth(team: Team, nbytes: int) -> float:
    """Measure the bytes per second that the team reads from memory."""

def read_seconds(team: Team, ranges: Sequence[tuple[int, int]], fetch_ahead: bool) -> float:
    """Measure the seconds that the team takes to read these memory ranges, each an address and a number of bytes.

    The bytes of a range after the last multiple of 256 bytes per thread are not read.
    """

def evict(team: Team, ranges: Sequence[tuple[int, int]]) -> None:
    """Evict these memory ranges, each an address and a number of bytes, from the caches of all processors."""

def peak_flops(
    team: Team, format: str = "bf16", passes: int = 7, random: bool = False, rounds: int = 2_000_000
) -> float:
    """Measure the operations per second of the tiles of the instruction set in use, or with "fp32" of its registers, on
    all threads of the team.

    The operands are equal numbers in registers, or with `random` random numbers that are loaded from the first-level
    cache. Operands of "fp32" are always equal. Returns the best of `passes`, each of `rounds` rounds of
    multiplications. By default each takes at most some hundredths of a second.
    """

def nest_flops(team: Team, format: str = "bf16", passes: int = 4) -> float | None:
    """Measure the operations per second of one thread, the caller, in the nest of a large product: weights come from
    memory and results are thrown away, so a product can reach no more. Return None without tile registers."""

def barrier_ns(team: Team) -> float:
    """Measure the nanoseconds of one barrier of the team."""

def read_packed(team: Team, fd: int, matrices: Sequence[PackedMatrix], offsets: Sequence[int]) -> list[int]:
    """Fill matrices from a file on the team's threads, each from its offset.

    Returns the checksums of their units of CHECKSUM_UNIT bytes, matrix after matrix. Raises OSError; a file that ends
    too early is EIO.
    """

def checksum(data: memoryview) -> int:
    """Return a 64-bit checksum that detects accidental damage of contiguous bytes."""

def gather(ranges: Sequence[tuple[int, int]], to: memoryview) -> None:
    """Copy memory ranges, each an address and a number of bytes, to a buffer, one after another.

    The interpreter's lock is released meanwhile, unless the bytes are few. Raises ValueError when the buffer has
    another number of bytes.
    """

def scatter(data: memoryview, ranges: Sequence[tuple[int, int]]) -> None:
    """Copy the bytes of a buffer to memory ranges, as `gather` copies them from there."""

class Team:
    """A pinned thread team; thread 0 is the caller."""

    def __init__(self, cpus: Sequence[int], progress: Progress | None = None, rank: int = 0) -> None:
        """Pin the caller to cpus[0] and a new thread to each of the others; -1 leaves a thread unpinned.

        The team records its barriers and its waiting threads in the part of `rank` of the board `progress`. Raises
        IndexError for a rank that the board does not have.
        """
    @staticmethod
    def in_turns(threads: int) -> Team:
        """Make a team for a program with a `Counter`: its threads take turns on the thread that calls the program."""
    @property
    def size(self) -> int: ...
    def act_as_first_of(self, threads: int) -> None:
        """Do what the first of `threads` threads would do, and leave the rest undone: for benchmarks. 1 ends that.

        Raises ValueError for a team of several threads.
        """

class AdapterWeights:
    """The memory of the low-rank adapters of a matrix.

    `parts` of the matrix' rows have an A each. A block is a panel of 16 rows and a part that has rows in it.
    """

    def __init__(self, places: int, rank: int, parts: int, k: int, panels: Sequence[Sequence[int]]) -> None:
        """Allocate `places` places for adapters of at most `rank`. `panels` has the parts in each panel, of an even
        number of panels. Raises ValueError for sizes that are not positive, and for parts that do not exist."""
    def set(
        self,
        place: int,
        ranks: Sequence[int],
        scales: Sequence[float],
        a: npt.NDArray[np.uint16],
        b: npt.NDArray[np.uint16],
    ) -> None:
        """Put an adapter in a place, from 0 on: ranks and scales of the parts, and the bits of bf16 `a` [parts, rank, k
        in whole tiles of 32] and `b` [blocks, rank, 16]. Raises ValueError for a place, a rank or a shape that does not
        fit."""
    def values(self, place: int) -> tuple[list[int], list[float], npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
        """Return copies of what `set` has put in a place. Raises ValueError for a place that does not exist."""
    def clear(self, place: int) -> None:
        """Leave a place without an adapter. Raises ValueError for a place that does not exist."""
    @property
    def places(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def parts(self) -> int: ...

class PackedMatrix:
    """A weight [n, k] in tile order, bf16 or quantized.

    "int8" has a scale for each of the n rows, the other formats one for each row and group of k.
    """

    def __init__(self, n: int, k: int, format: str = "bf16", group: int = 0, offsets: str = "none") -> None:
        """Make a matrix of zeros. `format` is bf16, int8, int4, int8_group, fp8, mxfp4, iq4, nvfp4, iq3 or iq2; the
        last eight have a `group` of 32, 64 or 128, mxfp4 of 32, and int4 and int8_group may have `offsets`: zeros or
        minima. Raises ValueError for anything else."""
    def pack(
        self,
        team: Team,
        data: npt.NDArray[np.uint8],
        dtype: str,
        source_cols: int,
        rows: npt.NDArray[np.int32],
        dst_row: int,
        first_col: int = 0,
        panel_stride: int = 1,
        panel_offset: int = 0,
    ) -> None:
        """Copy source rows `rows`, columns first_col .. first_col + k, to rows dst_row ...

        `data` is the whole tensor, row-major, `dtype` one of bf16, f16, f32, q8_0, q4_0, q4_1. With a panel stride the
        rows are dealt in panels of 16, one to every `panel_stride` panels. Blocks keep their codes in a matrix of their
        own kind: q8_0 in int8_group, q4_0 in int4, q4_1 in int4 with minima, groups of 32. Raises ValueError when
        something does not fit, or a block's scale is not finite.
        """
    def pack_codes(
        self,
        team: Team,
        codes: npt.NDArray[np.uint8],
        scales: npt.NDArray[np.float32],
        offsets: npt.NDArray[np.float32] | None,
        factors: npt.NDArray[np.float32] | None = None,
        *,
        source_group: int,
        offsets_are_zeros: bool,
        rows: npt.NDArray[np.int32],
        dst_row: int,
        first_col: int = 0,
        panel_stride: int = 1,
        panel_offset: int = 0,
    ) -> None:
        """Copy rows, as `pack` does, of a tensor that is quantized already.

        `codes` [rows of the tensor, columns]: 0..15 for int4 and iq, int8 + 128 for int8_group, the bits of int8,
        of e4m3 and, for mxfp4 and nvfp4, of e2m1.
        `scales` and `offsets` [rows of the tensor, columns / source_group]: weight = scale * (code - offset), or scale
        * code + offset, or without offsets scale * (code - 8 or 128). They are kept as fp16, of fp8 as fp32. `factors`
        [rows of the tensor, 1] multiply all weights of a row of nvfp4, whose scales are numbers of e4m3 for 16 columns.
        Raises ValueError when something does not fit, such as a source group that is not a multiple of the matrix's.
        """
    def to_numpy(self) -> npt.NDArray[np.float32]:
        """Return the values, [n, k]."""
    def buffer(self) -> memoryview:
        """Return all memory of the matrix, `nbytes` writable bytes. The memory lives as long as the view."""
    @property
    def n(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def group(self) -> int:
        """Columns that share a scale; 0 for formats without groups."""
    @property
    def offsets(self) -> str:
        """The kind of offsets: none, zeros or minima."""
    @property
    def nbytes(self) -> int: ...
    @property
    def address(self) -> int: ...

class Vector:
    """A norm weight or a bias, in fp32."""

    def __init__(self, values: npt.NDArray[np.float32]) -> None: ...
    def to_numpy(self) -> npt.NDArray[np.float32]:
        """Return the values, [size]."""
    @property
    def size(self) -> int: ...

class RopeTable:
    """Cosines and sines [positions, rotated dimensions / 2] of one rotary embedding, and factors of queries."""

    def __init__(
        self,
        cos: npt.NDArray[np.float32],
        sin: npt.NDArray[np.float32],
        query_scale: npt.NDArray[np.float32] | None = None,
        distance: int = 0,
    ) -> None:
        """Copy the tables. `query_scale`, [positions]: queries are multiplied by it; None: by 1. `distance`: dimensions
        from the first of a pair to the second; 0: half of the rotated dimensions."""
    def to_numpy(self) -> npt.NDArray[np.float32]:
        """Return both tables, [2, positions, rotated dimensions / 2]."""
    def query_scale_to_numpy(self) -> npt.NDArray[np.float32]:
        """Return the factors of queries, [positions], or nothing where all are 1."""
    @property
    def positions(self) -> int: ...
    @property
    def distance(self) -> int: ...

class Counter:
    """Counts the work of each thread in the steps of a Program, which computes nothing."""

    def __init__(self, skew: float = 0.0, seed: int = 0) -> None:
        """`skew`: of the routing to experts. An expert's share of the tokens is proportional to (its number + 1)^-skew.
        All layers route alike."""
    @property
    def phases(self) -> list[tuple[int, list[_Work], list[_Work], bool]]:
        """What the threads did between barriers in the last step: the index of the node, the work of each thread, that
        of each item that threads take when they are free, and whether threads alternate between this phase and the next
        one without a barrier."""

class Program:
    """A forward pass as one list of nodes, run by one call per step. Made by `workers.program.native`."""

    def __init__(
        self,
        team: Team,
        ring: Ring | None,
        settings: dict[str, Any],
        lender: Program | None = None,
        counter: Counter | None = None,
    ) -> None:
        """`settings`: the limits of a `Capacity` by their names, vocabulary, extra_tokens, context_parallel (None, or a
        tuple: boundaries of the ranks' heads, from how many tokens on, of at most how many sequences), kv_dtype (bf16,
        int8 or fp8_e4m3) and arena_bytes. `caches` has a tuple for each kind of KV cache: query heads, KV heads,
        dimensions of a key, of a value (0: as many as of a key), whether the first dimensions of a key are its value,
        window or 0, whether the window begins at its multiples, whether it is on either side, layers, page table (0, or
        the number of a window table plus 1). `states` has one for each kind of state: bytes of a slot, of a page, and
        of a draft token of a slot, layers. `lender` is a Program whose KV cache this one reads in place of its own.

        Raises TypeError for a setting that is missing, unknown or of another type, ValueError for heads that attention
        cannot do, and for caches that differ from those of `lender` in more than query heads and windows.
        """
    def add(self, kind: str, fields: dict[str, Any]) -> None:
        """Add an operation. Its fields are the members, by their names, of the struct of this kind in
        runtime/program/operations.h or another header of runtime whose name ends in _operations.h: `Place`,
        `QuantizedPlace`, weights, vectors, tables, sequences of them, numbers, names, and None for optional fields. The
        Program keeps its weights, vectors and tables alive.

        Raises TypeError for a field that is missing, unknown or of another type. Raises ValueError for an unknown kind
        and for fields that do not fit each other. Both errors name the operation.
        """
    def set_collectives(self, count: int, /) -> None: ...
    def init_slot(self, slot: int, settings: dict[str, Any]) -> None:
        """Forget what a slot held. `settings`: temperature, top_k, top_p, min_p, repetition_penalty,
        presence_penalty, frequency_penalty, seed, bias_ids and bias_values (of the logit bias), num_logprobs (-1:
        none), min_position and suppress (token ids that no earlier position may have), masked (whether samples wait for
        their masks), token_ids_logprob, penalties (whether there are any), prompt_history and output_history (token ids
        that penalties count).

        Raises TypeError for a setting that is missing, unknown or of another type, ValueError for a slot or token id
        that is out of range.
        """
    def use_masks(self, board: Board, grace_s: float) -> None:
        """Use `board` for the masks of masked slots. A step waits for all of them together at most `grace_s` seconds,
        or a fifth of the time that it has taken before, if that is longer. On rank 0; without a board masked sequences
        are dropped.

        Raises ValueError for a board with fewer rows than slots, or fewer bits than tokens.
        """
    def append_pages(self, slot: int, pages: Sequence[int], /) -> None: ...
    def advance_window(self, slot: int, window: int, first: int, pages: Sequence[int], /) -> None:
        """Append pages to a window table, of which no token reads the `first` pages any more. An empty table begins
        with as many pages that are absent.

        Raises ValueError for a slot, a window table or a page that is out of range, for a full table, and for a `first`
        that is no multiple of a block, below the one before, or after the end of the table.
        """
    def revert(self) -> None:
        """Undo the changes of slots since the last step that was run."""
    @property
    def nan_sequences(self) -> list[int]:
        """Indices of the last step's sequences with a row of logits that holds a NaN or has no finite maximum, known to
        rank 0 only, or with a result of pooling that is not all finite."""
    @property
    def dropped_sequences(self) -> list[int]:
        """Indices of the last step's sequences that are to be dropped, or whose mask allows no token. Known to rank 0
        only."""
    @property
    def late_sequences(self) -> list[int]:
        """Indices of the last step's sequences whose mask was not there in time. Known to rank 0 only."""
    @property
    def pooled(self) -> list[tuple[int, bytes]]:
        """Index of each sequence that the last step pooled, with the final norm of its last position, in fp32 of the
        machine's byte order."""
    def step(
        self,
        sequences: npt.NDArray[np.int32],
        tokens: npt.NDArray[np.int32],
        targets: npt.NDArray[np.int32],
        step_id: int = 0,
        drafts: Sequence[int] = (),
        *,
        states: Sequence[tuple[int, int, Sequence[tuple[int, int]]]] = (),
        placed: Sequence[tuple[int, int, int, int]] = (),
        part: tuple[int, int, int, int] | None = None,
    ) -> tuple[list[tuple[int, Logprobs | None, Logprobs | None, list[float]]], int, int, int]:
        """Run a batch: rows of (slot, start, count, from previous, end, targets) and their token ids. `end` is what the
        last position is for: 0 nothing, 1 a sample, 2 pooling, 3 pooling with vectors of tokens. Masks are those of
        step `step_id`.

        `drafts` is empty or has, for each sequence, the number of its last tokens that are draft tokens. A token is
        sampled after the last known token and after each draft token. Only samples after accepted draft tokens are
        returned and stored. Layers with states of sequences go on before draft tokens that were rejected: a sequence
        begins where the last batch knew its tokens, or after accepted draft tokens.

        `states` has, for each sequence that uses snapshots, its index in the batch, the snapshot that its states begin
        with (-1: none), and marks (position, snapshot): the states after that many tokens are stored there. A snapshot
        that a batch stores has no other use in it.

        `placed` has, for image features, the index of a sequence in the batch, the first of some positions among its
        new tokens, their number, and the first of as many rows of the feature pool. These rows replace the embeddings
        of the positions. No token is named twice.

        With a `part` only some nodes run: their first and their end, and the same of their collectives. The next part
        of the same batch finds what this one leaves in memory. Totals count a batch with its first part.

        Returns for each row of logits its sequence, sample, target, and at a sample the log-probabilities of its slot's
        `token_ids_logprob`, then nanoseconds in all, in collectives, and of waiting for masks.
        Raises ValueError for a batch that cannot be run, RingError when a peer is gone.
        """
    @property
    def blocking(self) -> dict[str, int]:
        """The blocking of products, by instruction set and processor: the fields of `Blocking` in include/types.h.

        The blocking changes no bit of a result. Setting it raises ValueError for sizes that are out of range, and
        unless each size is given.
        """
    @blocking.setter
    def blocking(self, to: Mapping[str, int]) -> None: ...
    def profile(self) -> list[tuple[str, str, int, int, int, int, int]]:
        """Return a row for each node: name, format of the operands, nanoseconds, nanoseconds of waiting for other
        ranks, bytes of weights, bytes read, and operations. All but the bytes of weights grow from step to step."""
    @property
    def totals(self) -> tuple[int, int, int]:
        """Steps, tokens and nanoseconds of all steps so far."""
    @property
    def shape_totals(self) -> tuple[int, int, int, int, int, int]:
        """Steps, sequences, tokens, rows of logits, pooled sequences, and tokens of divided sequences, so far."""
    @staticmethod
    def partial_rows(pages_per_slot: int) -> int:
        """Return the number of rows of partial attention results that a step needs."""
    @property
    def kv_memory(self) -> list[tuple[int, int]]:
        """Address and bytes of each layer's KV cache."""
    def state_memory(self, index: tuple[int, int]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
        """Return the states of the layer (kind, layer), [slots and snapshots, bytes] and [pages, bytes], which live as
        long as these arrays. A layer with states of pages has no snapshots.

        Raises ValueError for a layer without a state.
        """
    @property
    def arena(self) -> npt.NDArray[np.uint8]:
        """The memory of all buffers, at the offsets that their places name. It lives as long as this array."""
    @property
    def isa(self) -> str: ...
