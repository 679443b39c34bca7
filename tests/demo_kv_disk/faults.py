"""``python -m tests.demo_kv_disk.faults``: servers whose disk is slow, fails, hangs, is full, disappears or is in use.

A library that is preloaded into the server and its workers makes the disk faulty (`faulty_disk.cc`). Each server begins
with prompts on disk. An answer is right if its tokens and log-probabilities are those of a server that caches nothing.
A line is printed for each fault; the exit status is 1 where something in it is not as it has to be.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from tests.demo_kv_disk.fault_bench import (
    NEW,
    OLD,
    PAGES,
    Bench,
    Wrong,
    end,
    is_off,
    num_pages,
    off_reason,
    require,
    settle,
)
from tests.demo_kv_disk.faulty_disk import FaultyDisk
from tests.support.real_server import PATIENCE_S, RealServer

_SLOW_BYTES_PER_S = 5e6


def sound(bench: Bench) -> str:
    """The disk has no fault: what the others are compared with."""
    with bench.serve(bench.disk("sound")) as server:
        hits = _hits(bench, server)
        require(hits > 0, "nothing is read from a sound disk")
        end(server)
    return f"prefixes read {hits}"


def slow(bench: Bench) -> str:
    """Computing is quicker than reading, so nothing is read."""
    disk = bench.disk("slow")
    disk.order(f"slow {_SLOW_BYTES_PER_S}")
    with bench.serve(disk) as server:
        hits, metrics = _hits(bench, server), server.metrics()
        rate, read = metrics["kv_disk_read_bytes_per_second"], metrics["kv_disk_moved_bytes_total read"]
        require(hits == read == 0, f"{read:.0f} bytes are read from a slow disk")
        require(metrics["kv_disk_unpaid_total"] > 0, "no prefix was on disk")
        end(server)
    return f"measured {rate / 1e6:.1f} MB/s per rank, prefixes read 0, computed {metrics['kv_disk_unpaid_total']:.0f}"


def unreadable(bench: Bench) -> str:
    """Each read fails with EIO: the prefixes are computed and written again."""
    return _misses(bench, "unreadable", "io")


def short_reads(bench: Bench) -> str:
    """Each read returns half of what it was asked for: the records that are whole count."""
    return _misses(bench, "short", "short")


def unwritable(bench: Bench) -> str:
    """The first write that fails with EIO ends the tier; what was written is there at the next start."""
    return _refused_writes(bench, "unwritable")


def hanging_reads(bench: Bench) -> str:
    """A read misses its deadline: the tier is off, and clients go on or away."""
    disk = bench.disk("hanging-reads")
    with bench.serve(disk) as server:
        bench.ask(server, NEW)
        settle(server)
        disk.order("hang")
        bench.give_up(server, OLD[0])
        settle(server)
        begin = time.monotonic()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(bench.ask, server, OLD)
            bench.ask(server, NEW)
            others_s = time.monotonic() - begin
            waiting.result()
        waited_s = time.monotonic() - begin
        reason = off_reason(server)
        bench.ask(server, [*NEW, *OLD])
        ended_s = end(server)
    return f"others took {others_s:.1f} s, readers {waited_s:.1f} s, the end {ended_s:.1f} s; off: {reason}"


def released_reads(bench: Bench) -> str:
    """A disk that hung goes on, when the pages of its reads belong to others."""
    disk = bench.disk("released-reads")
    with bench.serve(disk) as server:
        bench.ask(server, NEW[:2])
        settle(server)
        disk.order("hang")
        bench.ask(server, OLD)
        reason = off_reason(server)
        disk.order("")
        for _ in range(4):
            bench.ask(server, [*NEW, *OLD])
        end(server)
    return f"off: {reason}"


def hanging_writes(bench: Bench) -> str:
    """A write misses its deadline."""
    disk = bench.disk("hanging-writes")
    with bench.serve(disk) as server:
        disk.order("hang")
        bench.ask(server, NEW)
        server.until(lambda: is_off(server), patience_s=2 * PATIENCE_S)  # a write has a minute
        bench.ask(server, [*NEW, *OLD])
        reason, ended_s = off_reason(server), end(server)
    return f"the end took {ended_s:.1f} s; off: {reason}"


def hanging_end(bench: Bench) -> str:
    """The server ends while writes of records and of the index hang, before their deadline."""
    disk = bench.disk("hanging-end")
    with bench.serve(disk) as server:
        bench.ask(server, NEW[:2])
        bench.ask(server, OLD)
        disk.order("hang")
        bench.ask(server, [*OLD, *NEW])
        state = server.info()["kv_disk"]["state"]
        require(state == "open", f"the tier is {state}")
        ended_s = end(server)
    return f"state {state}, the end took {ended_s:.1f} s"


def hanging_start(bench: Bench) -> str:
    """The server is ready and ends, although the disk hangs from the start."""
    disk = bench.disk("hanging-start")
    disk.order("hang")
    with bench.serve(disk, is_open=False) as server:
        bench.ask(server, [*NEW, *OLD])
        state = server.info()["kv_disk"]["state"]
        ended_s = end(server)
    return f"state {state}, the end took {ended_s:.1f} s"


def full(bench: Bench) -> str:
    """The disk has no room; what was written is there at the next start."""
    return _refused_writes(bench, "full")


def removed(bench: Bench) -> str:
    """The folder is removed, and made again by the next start."""
    disk = bench.disk("removed")
    with bench.serve(disk) as server:
        shutil.rmtree(disk.folder)
        bench.ask(server, [*NEW, *OLD])
        server.until(lambda: is_off(server))
        bench.ask(server, [*NEW, *OLD])
        reason = off_reason(server)
        end(server)
    with bench.serve(disk) as server:
        bench.ask(server, OLD)
        server.until(lambda: num_pages(server) == len(OLD) * PAGES)
        end(server)
    return f"off: {reason}; {_next_start(bench, disk)}"


def removed_with_workers(bench: Bench) -> str:
    """The folder is removed, and then a worker dies: the next one finds no folder."""
    disk = bench.disk("removed-with-workers")
    with bench.serve(disk) as server:
        shutil.rmtree(disk.folder)
        os.kill(server.worker_pids()[0], signal.SIGKILL)
        server.until(lambda: is_off(server))
        bench.ask(server, [*NEW, *OLD])
        reason = off_reason(server)
        end(server)
    require(not disk.folder.exists(), "the folder is there again")
    return f"off: {reason}"


def used_twice(bench: Bench) -> str:
    """A second server is refused, and the first one goes on."""
    disk = bench.disk("used-twice")
    with bench.serve(disk) as server:
        message = bench.refused(disk.folder)
        require(f"another server (process {server.process.pid}) uses this folder" in message, message)
        require(_hits(bench, server) > 0, "the first server reads nothing any more")
        end(server)
    return message.replace(str(disk.folder), "DISK")


FAULTS: list[Callable[[Bench], str]] = [sound, slow, unreadable, short_reads, unwritable, full, hanging_reads]
FAULTS += [released_reads, hanging_writes, hanging_end, hanging_start, removed, removed_with_workers, used_twice]


def main() -> int:
    """Print a line for each fault, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [fault.__name__ for fault in FAULTS]
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"some of {', '.join(names)}; default: all")
    asked = parser.parse_args().faults or names
    bad = 0
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        bench = Bench(Path(made))
        for fault in FAULTS:
            if fault.__name__ in asked:
                try:
                    print(f"{fault.__name__}: bits equal, {fault(bench)}", flush=True)
                except (Wrong, AssertionError, httpx.HTTPError) as error:
                    print(f"{fault.__name__}: WRONG: {error!r}", flush=True)
                    bad += 1
    return 1 if bad else 0


def _hits(bench: Bench, server: RealServer) -> int:
    """Ask the new prompts, from which the server learns the time of its steps. Then ask the prompts on disk, and return
    the number of prefixes that were read."""
    for number in NEW:
        bench.ask(server, [number])
    bench.ask(server, OLD)
    return round(server.metrics()["kv_disk_hits_total"])


def _misses(bench: Bench, order: str, problem: str) -> str:
    """Read from a disk that does not return what it is asked for. It reads again once it has no fault."""
    disk = bench.disk(order)
    with bench.serve(disk) as server:
        bench.ask(server, NEW)
        disk.order(order)
        bench.ask(server, OLD)
        misses = server.metrics()[f"kv_disk_problems_total {problem}"]
        require(misses > 0, "no read has met the fault")
        require(not is_off(server), "the tier is off")
        disk.order("")
        server.until(lambda: num_pages(server) == len([*OLD, *NEW]) * PAGES)
        end(server)
    return f"misses {misses:.0f}; {_next_start(bench, disk)}"


def _refused_writes(bench: Bench, order: str) -> str:
    disk = bench.disk(order)
    with bench.serve(disk) as server:
        disk.order(order)
        bench.ask(server, NEW)
        server.until(lambda: is_off(server))
        bench.ask(server, [*NEW, *OLD])
        reason = off_reason(server)
        end(server)
    disk.order("")
    return f"off: {reason}; {_next_start(bench, disk)}"


def _next_start(bench: Bench, disk: FaultyDisk) -> str:
    with bench.serve(disk) as server:
        hits = _hits(bench, server)
        require(hits > 0, "the next start reads nothing")
        end(server)
    return f"the next start reads {hits}"


if __name__ == "__main__":
    sys.exit(main())
