"""The state of a server for a terminal: `numaserve top`."""

from collections.abc import Sequence

from numaserve.server.engine.overview import Overview, WorkerState
from numaserve.server.profiling.figures import RankFigures
from numaserve.server.profiling.machine import Machine, Rates
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Column, Table
from rich.text import Text

WIDTH = 78  # columns where the terminal's width is unknown
_NARROW = 58  # with fewer columns, bars of operations are short
_NAME = 10  # columns of a line's name
_BAR, _NARROW_BAR = 24, 8  # columns of a bar
_OPERATIONS = 8
_TABLE_HEAD = 2  # lines of a table of operations before its rows
_GIB = 2**30
_UNBOUNDED = 1000  # columns, more than any table needs
# The columns of the table of nodes. Columns with a number above 0 may be left out, the highest number first.
_NODE_COLUMNS = (
    *(("node", 0), ("rank", 0), ("cores", 1), ("GB/s", 0), ("in steps", 2), ("waiting", 0)),
    *(("misplaced", 0), ("weights\nGiB", 3), ("KV\nGiB", 4), ("resident\nGiB", 5)),
)


def machine_view(
    url: str, machine: Machine, rates: Rates | None, width: int = WIDTH, height: int | None = None
) -> Group:
    """Return a view of queue, pages, nodes and a step by operation. Without `rates`, parts that need two answers are
    left out.

    Parts that do not fit `width` columns and `height` lines (None: any number) are left out, because a number that is
    cut off is useless. Operations are left out first, then nodes, the last ones of each first.
    """
    now = machine.now
    lines = [_pace(now, rates), _queue(now), _pages(now, width), _prefixes(now), *_disk(now), *_starved(now)]
    head = [_head(url, machine, width), Text(), *lines, Text()]
    left = None if height is None else height - sum(len(line.wrap(_console(width), width)) for line in head)
    nodes = _nodes(now.workers, rates, width, left)
    costs = [] if rates is None else [rank for rank in rates.ranks if rank.steps]
    if left is not None:
        left -= len(_console(width).render_lines(nodes)) + 1 + _TABLE_HEAD  # the one is the line between both
    most = _OPERATIONS if left is None else min(_OPERATIONS, left)
    steps = (each for rank in costs[:1] if most > 0 for each in (Text(), _step(rank, width, most)))
    return Group(*head, nodes, *steps)


def _console(width: int) -> Console:
    return Console(width=width, legacy_windows=False)


def _head(url: str, machine: Machine, width: int) -> Text:
    """Return the first line: the server's name, cut so that the state fits, then URL and version if they fit."""
    name, state = Text(machine.model, "bold"), machine.now.state
    name.truncate(max(_NAME, width - len(state) - 2), overflow="ellipsis")
    line = Text.assemble(name, "  ", (state, "green" if state == "serving" else "red"))
    for each in (url, machine.version):
        if len(line) + 2 + len(each) <= width:
            line.append(f"  {each}", "dim")
    return line


def _pace(now: Overview, rates: Rates | None) -> Text:
    if rates is None:
        return _line("Tokens", f"{now.generation_tokens:,} output, {now.prompt_tokens:,} prompt")
    steps = [rank.native_ns / rank.steps / 1e6 for rank in rates.ranks if rank.steps]
    step = f", {max(steps):.1f} ms per step" if steps else ""
    return _line(
        "Tokens/s",
        f"{rates.output_tokens_s:,.1f} output, {rates.prompt_tokens_s:,.0f} prompt; {rates.steps_s:.1f} steps/s{step}",
    )


def _queue(now: Overview) -> Text:
    waits = f", the longest for {now.longest_wait_s:.1f} s" if now.waiting else ""
    return _line("Queue", f"{now.running} of {now.max_running} running, {now.waiting} waiting{waits}")


def _pages(now: Overview, width: int) -> Text:
    total = now.pages_free + now.pages_cached + now.pages_active
    told = f"  pages: {now.pages_active:,} in use, {now.pages_cached:,} cached, {now.pages_free:,} free"
    most = max(_NARROW_BAR, min(_BAR, width - _NAME - len(told)))
    used, kept = round(most * now.pages_active / total), round(most * now.pages_cached / total)
    bar = Text.assemble(("█" * used, "blue"), ("▒" * kept, "blue"), ("░" * (most - used - kept), "dim"))
    return _line("KV cache", bar, told)


def _prefixes(now: Overview) -> Text:
    found = now.prefix_hit_tokens / now.prefix_query_tokens if now.prefix_query_tokens else 0.0
    branches = f"{len(now.prefixes.branches)}{'' if now.prefixes.complete else ' or more'}"
    return _line(
        "Prefixes",
        f"{found:.0%} of prompt tokens found in the cache; {now.prefixes.pages:,} pages, branches: {branches}",
    )


def _disk(now: Overview) -> Sequence[Text]:
    disk = now.disk
    if disk is None:
        return []
    if disk.state == "off":
        return [_line("Disk", Text(f"off until the next start: {disk.off_reason}", "red"))]
    pages = disk.records["pages"].number if "pages" in disk.records else 0
    nbytes = sum(each.nbytes for each in disk.records.values()) / _GIB
    kept = f"{pages:,} pages, {nbytes:.1f} of {disk.limit_bytes / _GIB:.1f} GiB"
    read = f"{disk.hit_tokens:,} tokens read, {disk.read_bytes_per_s / 1e9:.2f} GB/s"
    return [_line("Disk", f"{disk.state}: {kept}; {read}")]


def _starved(now: Overview) -> Sequence[Text]:
    ranks = [str(worker.rank) for worker in now.workers if worker.starved]
    if not ranks:
        return []
    told = Text(f"rank {', '.join(ranks)}: other processes or a quota take the CPU time", "red")
    return [_line("Starved", told)]


def _nodes(workers: Sequence[WorkerState], rates: Rates | None, width: int, lines: int | None) -> Group:
    ranks = {} if rates is None else {rank.rank: rank for rank in rates.ranks}
    rows = [_node(worker, rates, ranks.get(worker.rank)) for worker in workers]
    shown = [at for at, _ in enumerate(_NODE_COLUMNS)]
    for dropped in sorted(shown, key=lambda at: -_NODE_COLUMNS[at][1]):
        table = _table_of(rows, shown)
        if _NODE_COLUMNS[dropped][1] == 0 or _console(_UNBOUNDED).measure(table).maximum <= width:
            break
        shown.remove(dropped)
    head = len(_console(width).render_lines(table)) - len(rows)
    if lines is None or head + len(rows) <= lines:
        return Group(table)
    seen = max(0, lines - head - 1)
    return Group(_table_of(rows[:seen], shown), Text(f" and {len(rows) - seen} more", "dim"))


def _table_of(rows: Sequence[Sequence[Text | str]], shown: Sequence[int]) -> Table:
    columns = (Column(_NODE_COLUMNS[at][0], justify="right") for at in shown)
    table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for row in rows:
        table.add_row(*(row[at] for at in shown))
    return table


def _node(worker: WorkerState, rates: Rates | None, rank: RankFigures | None) -> Sequence[Text | str]:
    read = _reading(rank, 0.0 if rates is None else rates.seconds)
    sizes = (f"{size / _GIB:.2f}" for size in (worker.weight_bytes, worker.kv_bytes, worker.rss_bytes))
    misplaced = Text(str(worker.misplaced_pages), "red" if worker.misplaced_pages else "")
    return [str(worker.node), str(worker.rank), str(worker.cores), *read, misplaced, *sizes]


def _reading(rank: RankFigures | None, seconds: float) -> tuple[str, str, str]:
    """Return GB/s read in elapsed time, GB/s read in steps, and the fraction of step time spent waiting."""
    if rank is None or not rank.steps:
        return "0.0" if rank is not None else "", "", ""
    read = sum(each.bytes for each in rank.operations)
    waited = sum(each.wait_ns for each in rank.operations)
    return f"{read / seconds / 1e9:.1f}", f"{read / rank.native_ns:.1f}", f"{waited / rank.native_ns:.0%}"


def _step(rank: RankFigures, width: int, most: int) -> Table:
    """Return the table of the `most` costly operations of a step."""
    bar_width = _BAR if width >= _NARROW else _NARROW_BAR
    table = Table(
        Column(f"operation, rank {rank.rank}", no_wrap=True),
        Column("ms/step", justify="right"),
        Column("of a step"),
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    ran = sorted((each for each in rank.operations if each.ns > 0), key=lambda each: -each.ns)
    for each in ran[:most]:
        share = each.ns / rank.native_ns
        name = each.name if each.format in ("", "bf16") else f"{each.name} {each.format}"
        bar = Text.assemble(("█" * round(bar_width * share), "blue"), f" {share:.0%}")
        table.add_row(name, f"{each.ns / rank.steps / 1e6:.3f}", bar)
    return table


def _line(name: str, *parts: Text | str) -> Text:
    return Text.assemble((f"{name:<{_NAME}}", "dim"), *parts)
