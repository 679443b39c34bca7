"""Replaces what differs between two records of the same tree: ids, times, ports, processes and versions.

The text of an answer is edited, not its values: the order of keys, omitted fields and the form of numbers stay.
"""

import itertools
import re
from collections.abc import Iterator

_NUMBER = r"-?[0-9][0-9.eE+-]*"
IDS = re.compile(
    r"\b(cmpl|chatcmpl|req|resp|msg|rs|fc|fco|call|toolu|embd|rerank|score)([-_])[0-9a-zA-Z]{8,}(?![0-9a-zA-Z])"
)
HEX = re.compile(r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{32}\b")
TIMES = re.compile(
    rf'("(?:created|created_at|completed_at|[a-z_]*_duration|[a-z0-9_]*latency|duration|ttft|started_at|modified_at'
    rf"|uptime_seconds|weights_seconds|[a-z_]*_seconds|response_sent_to_client_ts|[a-z_]*_time)\"):\s?"
    rf'(?:{_NUMBER}|"[^"]*")'
)
_PROCESS = re.compile(rf'("(?:pid|port|steps|step_tokens|cpu_percent|rss_bytes|size_vram)"):\s?{_NUMBER}')
_ADDRESS = re.compile(r"127\.0\.0\.1:[0-9]+")
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+(?:Z|[+-][0-9:]+)?")
_VERSION = re.compile(r'("version":\s?|\bversion=)"[^"]*"')
_PRINT = re.compile(r"numaserve-[0-9][0-9a-zA-Z.+_-]*")
_CPUS = re.compile(r'("cpus"):\s?\[[0-9, ]*\]')
_STARVED = re.compile(r'("starved"):\s?(?:true|false)')  # depends on what else the machine does
_DIGEST = re.compile(r'("digest"):\s?"[^"]*"')


def normalise(text: str, *, folders: dict[str, str], loose: tuple[str, ...] = ()) -> str:
    """Return `text` with placeholders; `folders` maps paths to names, and `loose` are patterns of whole values."""
    for path, name in folders.items():
        text = text.replace(path, name)
    text = IDS.sub(r"\1\2ID", text)
    text = HEX.sub("HEX", text)
    text = TIMES.sub(r"\1:TIME", text)
    text = _PROCESS.sub(r"\1:NUMBER", text)
    text = _ADDRESS.sub("ADDRESS", text)
    text = DATE.sub("DATE", text)
    text = _VERSION.sub(r'\1"VERSION"', text)
    text = _PRINT.sub("numaserve-VERSION", text)
    text = _CPUS.sub(r"\1:CPUS", text)
    text = _STARVED.sub(r"\1:BOOLEAN", text)
    text = _DIGEST.sub(r'\1:"DIGEST"', text)
    for pattern in loose:
        text = re.sub(pattern, "LOOSE", text)
    return text


_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?P<labels>\{.*\})? (?P<value>\S+)$")
# Metrics whose values depend on time, on the division of work into steps, or on the memory of the machine.
_TIMED = re.compile(
    r"^process_|_seconds_(?:sum|bucket)$|_bytes$|numaserve_step_|inter_token|draft_tokens|late_masks|mask_seconds"
    r"|misplaced|_starved_"
)


def without_numbers(text: str) -> str:
    """Return `text` with its keys and names alone."""
    return re.sub(rf"(?<![\w.\"]){_NUMBER}\b", "N", text)


def normalise_metrics(text: str) -> str:
    """Return the metrics with the values that the requests alone determine."""
    lines = []
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        is_timed = sample is not None and _TIMED.search(sample["name"])
        lines.append(f"{sample['name']}{sample['labels'] or ''} VALUE" if sample and is_timed else line)
    return "\n".join(_in_order_of_ranks(lines))


def _in_order_of_ranks(lines: list[str]) -> Iterator[str]:
    """Yield the samples of ranks in their order: the server has that of their answers."""
    for is_of_rank, group in itertools.groupby(lines, lambda line: 'rank="' in line):
        samples = [*group]
        yield from sorted(samples) if is_of_rank else samples
