"""The figures of the disk tier, and what becomes of records that must go."""

import asyncio

import pytest
from numaserve.server.engine.views.gauges import Gauges
from numaserve.server.engine.views.info import disk_info
from numaserve.server.metrics.kv_disk_figures import DiskRecords
from numaserve.server.metrics.metrics import Metrics
from numaserve.server.scheduler.client import Client
from numaserve.server.scheduler.disk.changes import Cleared, Dropped
from numaserve.server.scheduler.disk.digests import digests_of
from numaserve.workers.interface.protocol import SamplingParams

from tests.support.disk_ranks import MOST, PAGE, PROMPT, RECORD, TEAM, Ranks
from tests.support.sequences import sequence


async def test_what_is_written_and_read_is_counted_and_shown() -> None:
    ranks, metrics = Ranks(), Metrics("m")
    gauges = Gauges(metrics, ranks.scheduler, disk=ranks.work.figures)

    def value(name: str, **labels: str) -> float | None:
        gauges.set()
        return metrics.registry.get_sample_value(f"numaserve_kv_disk_{name}", {"model_name": "m", **labels})

    assert (value("state", state="opening"), value("state", state="open")) == (1, 0)
    await ranks.open()
    ranks.serve("first")
    assert len(ranks.move()) == 5
    assert (value("state", state="open"), value("limit_bytes")) == (1, 1 << 20)
    assert (value("records", kind="pages"), value("bytes", kind="pages")) == (5, 10 * RECORD)
    assert value("moved_bytes_total", direction="written") == 10 * RECORD
    assert value("moved_seconds_total", direction="written") == 2
    assert value("moved_bytes_total", direction="read") == 0

    ranks.scheduler.kv.flush()
    ranks.serve("second")
    assert (value("hits_total"), value("hit_tokens_total")) == (1, 5 * PAGE)
    assert value("moved_bytes_total", direction="read") == 10 * RECORD
    ranks.scheduler.kv.flush()
    ranks.tier.set_read_rate(1.0)
    ranks.serve("third")
    assert (value("hits_total"), value("unpaid_total")) == (1, 1)

    info = disk_info("/kv", ranks.work.figures())
    assert info["pages"] == {"number": 5, "limit": MOST, "bytes": 10 * RECORD}
    assert (info["path"], info["state"], info["off_reason"], "anchors" in info) == ("/kv", "open", None, False)
    ranks.work.switch_off("io: it broke")
    assert (value("state", state="off"), value("read_bytes_per_second")) == (1, 0)
    assert disk_info("/kv", ranks.work.figures())["off_reason"] == "io: it broke"


async def test_a_prefix_that_cannot_be_read_whole_counts_as_far_as_it_was_read() -> None:
    ranks = Ranks()
    await ranks.open()
    ranks.serve("first")
    ranks.move()
    ranks.scheduler.kv.flush()
    ranks.scheduler.add(sequence("second", PROMPT, SamplingParams(), 1, client=TEAM))
    assert ranks.scheduler.schedule() is None
    ranks.move(lacking=2)
    figures = ranks.work.figures()
    assert (figures.hits, figures.hit_tokens, figures.problems["checksum"]) == (1, 3 * PAGE, 1)
    assert figures.records["pages"] == DiskRecords(4, MOST, 8 * RECORD)  # the page that is damaged is gone


async def test_a_write_that_fails_switches_the_tier_off() -> None:
    ranks = Ranks()
    await ranks.open()
    ranks.serve("first")
    ranks.move(lacking=2)
    figures = ranks.work.figures()
    assert (figures.state, figures.records["pages"].number) == ("off", 3)
    ranks.serve("second", Client("other"))
    assert ranks.move() == []


async def test_a_flush_is_kept_although_no_step_follows_or_the_tier_is_off_or_was_not_open() -> None:
    for off in (False, True):
        ranks = Ranks()
        await ranks.open()
        ranks.serve("first")
        ranks.move()
        if off:
            ranks.work.switch_off("the disk is slow")
        assert ranks.scheduler.flush_cache()
        ranks.work.keep_changes()
        assert ranks.index.kept[-1] == Cleared()
        assert not ranks.work.figures().records["pages"].number
    early = Ranks()
    assert early.scheduler.flush_cache()
    await early.open()
    early.work.pump()
    assert early.index.kept == [Cleared()]


async def test_records_of_a_removed_group_are_dropped_then_erased_and_only_then_replaced() -> None:
    ranks = await _two_clients()
    ranks.work.keep_groups({""})
    _check_that_the_team_is_gone(ranks)


async def test_records_that_are_too_old_are_dropped_then_erased_and_only_then_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("numaserve.server.engine.disk_work._LOOK_S", 0.0)
    ranks = await _two_clients(max_age_s=10)
    ranks.index.time += 10
    await asyncio.sleep(0.001)
    assert ranks.index.kept == []
    ranks.work.pump()
    ranks.serve("of all again", Client("other"))
    ranks.index.kept.clear()
    ranks.index.time += 1
    while not ranks.index.kept:  # which no request and no step is needed for
        await asyncio.sleep(0)
    _check_that_the_team_is_gone(ranks)


async def _two_clients(max_age_s: int | None = None) -> Ranks:
    """A server that has written a prompt of the team, and then the same of another client."""
    ranks = Ranks(max_age_s=max_age_s)
    await ranks.open()
    ranks.serve("of the team")
    ranks.serve("of all", Client("other"))
    ranks.move()
    assert ranks.work.figures().records["pages"].number == 10
    ranks.index.kept.clear()
    return ranks


def _check_that_the_team_is_gone(ranks: Ranks) -> None:
    *dropped, erased = ranks.index.kept
    team = set(digests_of(sequence("team", PROMPT, SamplingParams(), 1, client=TEAM), 5, PAGE))
    assert {each.digest for each in dropped if isinstance(each, Dropped)} == team
    assert isinstance(erased, dict)
    assert ranks.work.figures().records["pages"].number == 5
    directory = ranks.tier.shelves.pages.directory  # type: ignore[union-attr]
    assert directory.take_slot() == (10, None)  # no slot that is being erased
    ranks.index.erased.pop()()
    taken = directory.take_slot()
    assert taken is not None
    assert taken[0] in erased["pages"]


async def test_a_record_that_is_being_written_when_its_group_is_removed_is_erased_and_no_more_are_written() -> None:
    ranks = Ranks()
    await ranks.open()
    ranks.serve("of the team")
    ranks.work.keep_groups({""})
    assert ranks.index.kept == []
    slots = [record.slot for record in ranks.move()]
    assert ranks.index.kept == [{"pages": slots}]
    ranks.scheduler.kv.flush()
    ranks.serve("of the team again")
    assert ranks.move() == []
