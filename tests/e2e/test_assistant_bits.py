"""An assistant in the workers changes no bit, whatever it drafts."""

from pathlib import Path

import pytest
from test_window_bits import longer_requests, table_of, window_of

from tests.support import gemma4
from tests.support.drafters import NoDrafters
from tests.support.rank_group import RankGroup
from tests.support.same_bits import (
    FEWEST_PAGES,
    few_requests,
    make_group,
    save_tiny_model,
    scheduler_config,
    tiny_model,
)
from tests.support.traffic import Traffic, assert_serves, each_alone

NAMES = ("gemma4", "gemma4-experts")
DRAFTED = "draft_model"


def drafted(group: RankGroup, *, ahead: int, **changes: object) -> Traffic:
    limits = scheduler_config(worker_drafter="assistant", **changes)
    return Traffic(group, limits, ahead=ahead, drafters=NoDrafters())


@pytest.mark.parametrize("tp", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_an_assistant_changes_no_bit(name: str, tp: int, tmp_path: Path) -> None:
    assistant = gemma4.save_assistant(tiny_model(name).config, tmp_path / "assistant")
    requests = few_requests()
    with make_group(save_tiny_model(name, tmp_path / name), tp, draft_model=assistant) as group:
        alone = each_alone(group, scheduler_config(), requests)
        for ahead in (1, 2):
            traffic = drafted(group, ahead=ahead, enable_prefix_cache=True, num_pages=FEWEST_PAGES)
            assert_serves(traffic, requests, alone)
            assert sum(traffic.scheduler.drafted[DRAFTED, right] for right in (True, False)) > 50


def test_an_assistant_changes_no_bit_with_window_tables(tmp_path: Path) -> None:
    model, requests = save_tiny_model("gemma4", tmp_path / "gemma4"), longer_requests()
    assistant, table = (
        gemma4.save_assistant(tiny_model("gemma4").config, tmp_path / "assistant"),
        table_of(window_of(model)),
    )
    with make_group(model, 2) as group:
        alone = each_alone(group, scheduler_config(), requests)
    with make_group(model, 2, window_pages=[table.num_pages], draft_model=assistant) as group:
        for ahead in (1, 2):
            traffic = drafted(group, ahead=ahead, window_tables=(table,), enable_prefix_cache=True)
            assert_serves(traffic, requests, alone)
            assert sum(traffic.scheduler.drafted[DRAFTED, right] for right in (True, False)) > 50
