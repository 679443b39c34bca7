"""The current state of the engine for GET /machine: queue, pages, prefix tree and workers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from numaserve.server.metrics.kv_disk_figures import DiskFigures
from numaserve.server.scheduler.cache.radix_tree import Node, RadixTree
from numaserve.workers.interface.protocol import Launch, Ready, WorkerStats

# Enough for a picture. A tree may have a hundred thousand pages, and the event loop walks through it.
MAX_BRANCHES = 160
MAX_PAGES_SEEN = 4000


@dataclass(frozen=True)
class Branch:
    """Consecutive pages of a prefix without a branch between them."""

    parent: int  # index of the parent branch in the list; -1: the branch begins a prompt
    pages: int
    used: bool  # by a running sequence; otherwise cached until its memory is needed


@dataclass(frozen=True)
class Prefixes:
    """The shape of the tree of cached prefixes, without tokens and salts, which can belong to other clients."""

    pages: int  # of the whole tree
    branches: list[Branch]  # parents before their children, in breadth-first order
    complete: bool  # no branch is left out


@dataclass(frozen=True)
class WorkerState:
    """A rank and its location."""

    rank: int
    node: int
    cores: int
    isa: str
    weight_bytes: int
    kv_bytes: int
    rss_bytes: int
    misplaced_pages: int
    starved: bool = False  # steps are late because it waits for a processor


@dataclass(frozen=True)
class Overview:
    """The current state of the engine."""

    state: str
    running: int
    waiting: int
    max_running: int
    max_waiting: int
    longest_wait_s: float  # of requests that wait and have not begun; 0 if there are none
    page_size: int  # tokens
    pages_free: int
    pages_cached: int
    pages_active: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    prompt_tokens: int
    generation_tokens: int
    retractions: int
    restarts: int
    steps: int
    prefixes: Prefixes
    workers: list[WorkerState]  # by rank; empty until they have loaded
    disk: DiskFigures | None = None  # None: there is no disk tier


def prefixes_of(tree: RadixTree) -> Prefixes:
    """Return the shape of `tree`, breadth first, with at most `MAX_BRANCHES` branches and `MAX_PAGES_SEEN` pages."""
    most = MAX_BRANCHES + 1  # one more than the limit, which shows that there are more branches
    first_pages = chain.from_iterable(root.children.values() for root in tree.roots())
    begins = [(-1, page) for page in islice(first_pages, most)]
    branches: list[Branch] = []
    seen = 0
    for parent, first in begins:  # the list grows during the loop
        if len(branches) == MAX_BRANCHES or seen >= MAX_PAGES_SEEN:
            return Prefixes(tree.num_pages, branches, complete=False)
        last, pages = _end_of_branch(first, MAX_PAGES_SEEN - seen)
        seen += pages
        begins += [(len(branches), page) for page in islice(last.children.values(), most - len(begins))]
        branches.append(Branch(parent, pages, first.locks > 0))
    return Prefixes(tree.num_pages, branches, complete=True)


def _end_of_branch(node: Node, most: int) -> tuple[Node, int]:
    """Return the last page of the branch that begins with `node`, and the number of pages up to it.

    The search stops at page number `most`. A branch also ends where running sequences stop using it.
    """
    pages = 1
    while pages < most and len(node.children) == 1:
        (child,) = node.children.values()
        if (child.locks > 0) != (node.locks > 0):
            break
        node = child
        pages += 1
    return node, pages


def workers_of(
    launches: Sequence[Launch],
    ready: Mapping[int, Ready],
    told: Mapping[int, WorkerStats | Ready],
    starved: Collection[int],
) -> list[WorkerState]:
    """Return the state of each `ready` rank of `launches`, with the latest figures of `told`; `starved` are the ranks
    that lack processor time."""
    return [
        WorkerState(
            rank=launch.number,
            node=launch.nodes[launch.rank],
            cores=len(launch.cpus[launch.rank]),
            isa=ready[launch.number].isa,
            weight_bytes=ready[launch.number].weight_bytes,
            kv_bytes=ready[launch.number].kv_bytes,
            rss_bytes=told[launch.number].rss_bytes,
            misplaced_pages=told[launch.number].misplaced_pages,
            starved=launch.number in starved,
        )
        for launch in launches
        if launch.number in ready
    ]
