"""A server at one moment, for a terminal: `numaserve top`."""

from collections.abc import Sequence

from numaserve.server.engine.overview import Overview, WorkerState
from numaserve.server.profiling.figures import RankFigures
from numaserve.server.profiling.machine import Machine, Rates
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text

WIDTH = 78  # columns that all of it needs
_NARROW = 58  # in fewer, what is told of nodes beside their work is left out too
_BAR, _NARROW_BAR = 24, 8  # columns of a bar
_OPERATIONS = 8
_GIB = 2**30
# Of the table of nodes, with the width from which on each is shown.
_NODE_COLUMNS = (
    *(("node", 0), ("rank", 0), ("cores", _NARROW), ("GB/s", 0), ("in steps", _NARROW), ("waiting", 0)),
    *(("misplaced", 0), ("weights\nGiB", WIDTH), ("KV\nGiB", WIDTH), ("resident\nGiB", WIDTH)),
)


def machine_view(url: str, machine: Machine, rates: Rates | None, width: int = WIDTH) -> Group:
    """Queue, pages, nodes and a step by operation; what needs two answers is left out where there are no `rates`.

    What `width` columns have no room for is left out: a number that is cut off tells nothing.
    """
    now = machine.now
    head = Text.assemble((machine.model, "bold"), "  ", (now.state, "green" if now.state == "serving" else "red"))
    head.append(f"  {url}  {machine.version}", "dim")
    lines = [head, Text(), _pace(now, rates), _queue(now), _pages(now), _prefixes(now)]
    costs = [] if rates is None else [rank for rank in rates.ranks if rank.steps]
    return Group(*lines, _nodes(now.workers, rates, width), *(_step(rank, width) for rank in costs[:1]))


def _pace(now: Overview, rates: Rates | None) -> Text:
    if rates is None:
        return _line("Tokens", f"{now.generation_tokens:,} generated, {now.prompt_tokens:,} of prompts")
    steps = [rank.native_ns / rank.steps / 1e6 for rank in rates.ranks if rank.steps]
    step = f", {max(steps):.1f} ms each" if steps else ""
    return _line(
        "Tokens/s",
        f"{rates.output_tokens_s:,.1f} generated, {rates.prompt_tokens_s:,.0f} of prompts; "
        f"{rates.steps_s:.1f} steps/s{step}",
    )


def _queue(now: Overview) -> Text:
    waits = f", the first since {now.longest_wait_s:.1f} s" if now.waiting else ""
    return _line("Queue", f"{now.running} of {now.max_running} run, {now.waiting} wait{waits}")


def _pages(now: Overview) -> Text:
    total = now.pages_free + now.pages_cached + now.pages_active
    used, kept = round(_BAR * now.pages_active / total), round(_BAR * now.pages_cached / total)
    bar = Text.assemble(("█" * used, "blue"), ("▒" * kept, "blue"), ("░" * (_BAR - used - kept), "dim"))
    told = f"  {now.pages_active:,} in use, {now.pages_cached:,} kept, {now.pages_free:,} free pages"
    return _line("KV cache", bar, told)


def _prefixes(now: Overview) -> Text:
    found = now.prefix_hit_tokens / now.prefix_query_tokens if now.prefix_query_tokens else 0.0
    branches = f"{len(now.prefixes.branches)}{'' if now.prefixes.complete else ' or more'}"
    return _line("Prefixes", f"{found:.0%} of prompts found; {now.prefixes.pages:,} pages, branches: {branches}")


def _nodes(workers: Sequence[WorkerState], rates: Rates | None, width: int) -> Table:
    ranks = {} if rates is None else {rank.rank: rank for rank in rates.ranks}
    rows = [_node(worker, rates, ranks.get(worker.rank)) for worker in workers]
    shown = [(name, [row[at] for row in rows]) for at, (name, needed) in enumerate(_NODE_COLUMNS) if width >= needed]
    table = Table(*(Column(name, justify="right") for name, _ in shown), box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in zip(*(cells for _, cells in shown), strict=True):
        table.add_row(*row)
    return table


def _node(worker: WorkerState, rates: Rates | None, rank: RankFigures | None) -> Sequence[Text | str]:
    read = _reading(rank, 0.0 if rates is None else rates.seconds)
    sizes = (f"{size / _GIB:.2f}" for size in (worker.weight_bytes, worker.kv_bytes, worker.rss_bytes))
    misplaced = Text(str(worker.misplaced_pages), "red" if worker.misplaced_pages else "")
    return [str(worker.node), str(worker.rank), str(worker.cores), *read, misplaced, *sizes]


def _reading(rank: RankFigures | None, seconds: float) -> tuple[str, str, str]:
    """Bytes read a second of the time that went by, of that in steps, and the part of steps spent waiting."""
    if rank is None or not rank.steps:
        return "0.0" if rank is not None else "", "", ""
    read = sum(each.bytes for each in rank.operations)
    waited = sum(each.wait_ns for each in rank.operations)
    return f"{read / seconds / 1e9:.1f}", f"{read / rank.native_ns:.1f}", f"{waited / rank.native_ns:.0%}"


def _step(rank: RankFigures, width: int) -> Table:
    most = _BAR if width >= _NARROW else _NARROW_BAR
    table = Table(
        Column(f"operation, rank {rank.rank}", no_wrap=True),
        Column("ms a step", justify="right"),
        Column("of a step"),
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    ran = sorted((each for each in rank.operations if each.ns > 0), key=lambda each: -each.ns)
    for each in ran[:_OPERATIONS]:
        share = each.ns / rank.native_ns
        name = each.name if each.format in ("", "bf16") else f"{each.name} {each.format}"
        bar = Text.assemble(("█" * round(most * share), "blue"), f" {share:.0%}")
        table.add_row(name, f"{each.ns / rank.steps / 1e6:.3f}", bar)
    return table


def _line(name: str, *parts: Text | str) -> Text:
    return Text.assemble((f"{name:<10}", "dim"), *parts)
