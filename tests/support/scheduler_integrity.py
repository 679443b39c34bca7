"""Proves that the scheduler's books add up. Slow: for tests, and for a server that is being debugged."""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

from numaserve.server.scheduler.cache.radix_tree import Node, RadixTree
from numaserve.server.scheduler.errors import SchedulerIntegrityError
from numaserve.server.scheduler.scheduler import Scheduler
from numaserve.server.scheduler.sequence import Sequence, SequenceState


def check_integrity(scheduler: Scheduler) -> None:
    """Raise `SchedulerIntegrityError` unless every page and slot is in one place and every lock has a holder."""
    nodes = check_tree(scheduler.kv.tree, Counter(_locked_paths(scheduler)))
    _check_pages(scheduler, nodes)
    _check_anchors(scheduler, nodes)
    _check_features(scheduler)
    _check_slots(scheduler)
    _check_queues(scheduler)
    _check_levels(scheduler)


def check_tree(tree: RadixTree, locks: Counter[Node]) -> list[Node]:
    """Check the tree's structure, and that its nodes have just the `locks` given (those not named have none).

    Returns the nodes.
    """
    nodes = list(tree.nodes())
    known = set(nodes)
    order = {node: index for index, node in enumerate(tree._evictable)}
    _require(locks.keys() <= known, "a sequence holds a node that is not in the tree")
    _require(sum(node.parent is not None for node in nodes) == tree.num_pages, "the tree miscounts its pages")
    for node in nodes:
        parent, held = node.parent, locks.get(node, 0)
        if node.locks != held:
            raise SchedulerIntegrityError(f"page {node.page} has {node.locks} locks and {held} holders")
        if parent is None:
            _require(bool(node.children) or held > 0, "an empty root was kept")
            _require(node not in order, "a root is to be evicted")
            continue
        _require(parent.children.get(node.key) is node, "a node is not its parent's child")
        _require(node.depth == parent.depth + 1 and node.scope == parent.scope, "a node is out of place")
        _require((node in order) == (held == 0), "evictable and unlocked are not the same")
        if held == 0:
            _require(order[node] < order.get(parent, len(order)), "a parent would be evicted before its child")
    _require(order.keys() <= known, "a node that is not in the tree is to be evicted")
    return nodes


def _locked_paths(scheduler: Scheduler) -> list[Node]:
    path = []
    for node in _held_nodes(scheduler):
        step: Node | None = node
        while step is not None:
            path.append(step)
            step = step.parent
    return path


def _held_nodes(scheduler: Scheduler) -> list[Node]:
    nodes = [] if scheduler.disk is None else scheduler.disk.held_nodes
    for seq in scheduler.running:
        if seq.node is None:
            raise SchedulerIntegrityError(f"{seq.request_id!r} runs without a place in the tree")
        nodes.append(seq.node)
    return nodes


def _check_pages(scheduler: Scheduler, nodes: list[Node]) -> None:
    kv, config = scheduler.kv, scheduler.config
    places = [*kv.allocator._free, *(node.page for node in nodes if node.parent is not None)]
    if scheduler.disk is not None:
        places += scheduler.disk.held_pages
    for seq in scheduler.running:
        shared = [] if seq.node is None else kv.tree.path_pages(seq.node)
        _require(seq.pages[: len(shared)] == shared, f"{seq.request_id!r} has other pages than it has locked")
        whole = config.whole_prompts and not seq.pages and seq.num_remaining == 0  # its pages were that step's
        enough = seq.position.computed <= len(seq.pages) * config.page_size
        _require(whole or enough, f"{seq.request_id!r} is computed beyond its pages")
        places += seq.pages[len(shared) :]
    _require_same(places, range(kv.allocator.num_pages), "pages not in one place")


def _check_anchors(scheduler: Scheduler, nodes: list[Node]) -> None:
    anchors, waiting = scheduler.kv.anchors, [*scheduler.waiting, *scheduler.held]
    _require(all(seq.marks is None and not seq.tails for seq in waiting), "one that waits holds marks or window pages")
    waits = scheduler.running_set._prefix_waits
    computing = [] if waits is None else [each.computing for each in waits._waits if not each.is_over]
    _require(all(seq in scheduler.running for seq in computing), "one is waited for that does not run")
    if anchors is None:
        _require(all(seq.marks is None for seq in scheduler.running), "one of a model without anchors has marks")
    else:
        known = set(nodes)
        for node, anchor in anchors._of.items():
            _require(anchor.node is node and node in known and not node.hidden, "an anchor is at no node that is found")
        _require(anchors._unfound.keys() <= known, "marks are remembered whose pages are gone")
    _check_holdings(scheduler)


def _check_holdings(scheduler: Scheduler) -> None:
    kv = scheduler.kv
    held = [] if scheduler.disk is None else scheduler.disk.held_anchors
    if kv.anchors is not None:
        held += [each.holding for each in kv.anchors._of.values()]
        dropped = (anchor for node, anchor in kv.anchors._pinned.items() if kv.anchors._of.get(node) is not anchor)
        held += [anchor.holding for anchor in dropped]
    for seq in scheduler.running:
        if seq.marks is not None:
            _require(not seq.marks.planned, f"{seq.request_id!r} has planned marks")
            held += [each.holding for each in (*seq.marks.held, seq.marks.rolling) if each is not None]
        else:
            _require(kv.anchors is None, f"{seq.request_id!r} has no marks")
    snapshots = kv._holdings.snapshots
    if snapshots is not None:
        places = [*snapshots._free, *snapshots._freed, *(each.snapshot for each in held)]
        _require_same(places, range(scheduler.config.capacity.num_snapshots), "snapshots not in one place")
    for number, pool in enumerate(kv._holdings.windows):
        used = [page for each in held for page in each.tails[number].pages]
        used += [page for seq in scheduler.running for page in seq.tails[number].pages]
        counted = {page: count for page, count in enumerate(pool._holders) if count}
        if (holders := dict(Counter(used))) != counted:
            raise SchedulerIntegrityError(f"{holders} hold window pages, and {counted} are counted")
        free = [page for page in range(pool.num_pages) if page not in holders]
        _require_same(pool._allocator._free, free, "window pages are lost, or free and held")


def _check_features(scheduler: Scheduler) -> None:
    pool = scheduler.features
    locks = Counter(place for record in scheduler.in_flight for place in record.places)
    if pool.begun is not None:
        locks[pool.begun.place] += 1
        seq = pool.begun.seq
        _require(scheduler.live.by_id.get(seq.request_id) is seq, "a run goes on for a sequence that has ended")
        _require(seq not in scheduler.held, "a run goes on for a suspect that is held back")
    if pool._locks != locks:
        raise SchedulerIntegrityError(f"places have locks {pool._locks}, and plans in flight hold {locks}")
    places = [*pool._free, *pool._evictable, *pool._locks]
    _require_same(places, range(pool._num_places), "places of features not in one place")
    _require(pool._keys.items() >= {(place, key) for key, place in pool._places.items()}, "a place has another key")
    _require(pool._evictable.keys() <= {*pool._places.values()}, "features are lost")
    _require({*pool._places.values()} <= pool._evictable.keys() | pool._locks, "features are at a free place")
    before = scheduler.running_set.before_images
    with_images = {seq for seq in scheduler.running if seq.request.images}
    ahead = {seq for seq in with_images if seq.position.next < seq.request.images[-1].end}
    _require(len({*before}) == len(before) and ahead <= {*before} <= with_images, "images to come are miscounted")


def _check_slots(scheduler: Scheduler) -> None:
    slots = [*scheduler.running_set.free_slots, *(seq.slot for seq in scheduler.running)]
    _require_same(slots, range(scheduler.config.capacity.max_slots), "slots not in one place")


def _check_levels(scheduler: Scheduler) -> None:
    levels, shares = scheduler.running_set._levels, scheduler.waiting._shares.values()
    held = {name: (held.running, held.pages) for name, held in levels._held.items()}
    running: dict[str, list[Sequence]] = {}
    for seq in scheduler.running:
        running.setdefault(seq.request.client.name, []).append(seq)
    pages = {name: (own, sum(len(seq.pages) for seq in own)) for name, own in running.items()}
    _require(held == pages, "what clients hold is miscounted")
    orders = [(levels.of(share.place[-1]), share.place) for share in shares if share.place is not None]
    first = min(orders)[-1][-1] if orders else None
    _require(scheduler.waiting.first(levels) is first, "somebody else than the first of all is taken to be it")


def _check_queues(scheduler: Scheduler) -> None:
    waiting = list(scheduler.waiting)
    everybody = [*scheduler.running, *waiting]
    _require(all(a.turn < b.turn for a, b in pairwise(scheduler.running)), "those that run are out of order of turns")
    _check_shares(scheduler)
    _require(all(seq.state is SequenceState.RUNNING for seq in scheduler.running), "not all that run are RUNNING")
    for seq in [*waiting, *scheduler.held]:
        idle = seq.state is SequenceState.WAITING and seq.slot == -1 and not seq.pages and seq.node is None
        _require(idle and seq.position.computed == 0, f"{seq.request_id!r} waits and holds something")
    pending = Counter(entry.seq for record in scheduler.in_flight for entry in record.entries if entry.sample)
    for seq in [*everybody, *scheduler.held]:
        at = seq.position
        _require(seq.tokens is at.tokens, f"{seq.request_id!r} has two lists of tokens")
        _require(at.pending == pending.get(seq, 0), f"{seq.request_id!r} miscounts its samples in flight")
        _require(len(at.tokens) + at.pending <= at.max_tokens, f"{seq.request_id!r} is planned past its end")


def _check_shares(scheduler: Scheduler) -> None:
    queue = scheduler.waiting
    live = Counter([seq.request.client.name for seq in [*scheduler.running, *queue, *scheduler.held]])
    _require(live == Counter({name: share.live for name, share in queue._shares.items()}), "clients are miscounted")
    in_line = [seq for share in queue._shares.values() for seq in share.waiting]
    _require(len(queue) == len(in_line), "those that wait are miscounted")
    _require(not any(seq.awaits_mask or seq.awaits_prefix for seq in in_line), "one that has to wait is in the line")
    _require(all(seq.awaits_mask or seq.awaits_prefix for seq in queue.aside), "one is set aside for nothing")
    places = [share.place for share in queue._shares.values() if share.waiting]
    _require(queue._line == sorted(filter(None, places)) and None not in places, "clients are not lined up")
    for share in queue._shares.values():
        _require(share.place is None or share.place[-1] is share.waiting[0], "another one than its first is lined up")
        orders = [(seq.turn, seq.place, seq.arrival) for seq in share.waiting]
        _require(orders == sorted(orders), "a client's queue is out of order")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise SchedulerIntegrityError(message)


def _require_same(numbers: Iterable[int], expected: Iterable[int], message: str) -> None:
    """Compare numbers in any order with those that are `expected`, in ascending order."""
    found, right = sorted(numbers), list(expected)
    if found != right:
        more, less = Counter(found) - Counter(right), Counter(right) - Counter(found)
        raise SchedulerIntegrityError(f"{message}: too many {dict(more)}, too few {dict(less)}")
