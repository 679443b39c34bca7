"""The disk tier of a rank's Programs."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from numaserve.workers.interface.protocol import Launch
from numaserve.workers.kv_disk.memory import CacheMemory, Pieces, TailMemory
from numaserve.workers.kv_disk.tier import DiskTier
from numaserve.workers.process.rank_program import RankProgram
from numaserve.workers.program.caches import CacheIndex, StateKind


def make_disk(
    launch: Launch,
    served: RankProgram,
    drafters: Sequence[RankProgram],
    steps: Callable[[], int],
    wake: Callable[[], None],
) -> DiskTier:
    """Return the disk tier of a launch that names a folder for it. `steps` counts steps; see `DiskTier`."""
    memory = cache_memory(served, drafters)
    cpus = launch.cpus[launch.rank]
    return DiskTier(launch.rank, Path(launch.disk_folder), memory, cpus=cpus, steps=steps, wake=wake)


def cache_memory(served: RankProgram, drafters: Sequence[RankProgram]) -> CacheMemory:
    """Return the memory of the caches that a prefix has in the served model and in the Programs of its drafter."""
    programs = [served, *drafters]
    _, *windows = zip(served.table_memory(), served.limits.table_pages, served.setup.table_windows, strict=True)
    tails = [
        TailMemory([Pieces.of(layer, pages) for layer in layers], min(window.tail_pages(), pages))
        for layers, pages, window in windows
    ]
    return CacheMemory([piece for program in programs for piece in _pages(program)], [*_snapshots(served)], tails)


def _pages(program: RankProgram) -> Iterator[Pieces]:
    """Return the memory of pages of the common table: keys and values, then states."""
    num_pages = program.limits.num_pages
    yield from (Pieces.of(layer, num_pages) for layer in program.table_memory()[0])
    for kind, index in _states(program):
        if not kind.of_sequences:
            _, of_pages = program.program.state_memory(index)
            yield Pieces.of((of_pages.ctypes.data, of_pages.nbytes), num_pages)


def _snapshots(program: RankProgram) -> Iterator[Pieces]:
    """Return the memory of snapshots; no drafter has states that it cannot continue without."""
    slots, snapshots = program.limits.max_slots, program.limits.num_snapshots
    for kind, index in _states(program):
        if kind.of_sequences:
            of_slots, _ = program.program.state_memory(index)
            after_slots = of_slots[slots : slots + snapshots]
            yield Pieces.of((after_slots.ctypes.data, after_slots.nbytes), snapshots)


def _states(program: RankProgram) -> Iterator[tuple[StateKind, CacheIndex]]:
    for number, kind in enumerate(program.setup.shape.states):
        yield from ((kind, CacheIndex(number, layer)) for layer in range(kind.layers))
