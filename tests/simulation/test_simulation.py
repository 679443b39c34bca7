"""Engine, scheduler, supervisor and step loop over simulated workers, in some hundred runs."""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.__main__ import main
from tests.simulation.defects import DEFECTS
from tests.simulation.run import run
from tests.simulation.scenario import STEP_FAULTS

ROOT = Path(__file__).parents[2]


def _runs(*seeds: int) -> Counter[str]:
    """The events of runs in which nothing goes wrong, by kind."""
    seen: Counter[str] = Counter()
    for seed in seeds:
        outcome = run(seed)
        assert not outcome.violation, f"see python -m tests.simulation --first {seed} --seeds 1 --log"
        seen += outcome.seen
    return seen


def test_nothing_goes_wrong_whatever_the_workers_do() -> None:
    _runs(*range(100))


def test_a_seed_gives_the_same_events_in_each_process_and_order() -> None:
    digests = [run(seed).digest for seed in reversed(range(20))]
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "20", "--log"]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert re.findall(r"^hash (\w+)$", done.stdout, re.MULTILINE) == digests[::-1]


def test_runs_come_through_every_state_and_see_every_fault() -> None:
    seen = _runs(*range(100, 300))
    faults = {f"fault.{fault}" for fault in STEP_FAULTS}
    deaths = {"group.dies in a step", "group.dies idle", "given up", "not started", "start cancelled"}
    deaths |= {"group.freezes in a step", "group.freezes idle"}
    deaths |= {f"group.loads and {fault}" for fault in ("dies", "dies at its end", "stuck")}
    states = {f"state.{state}" for state in ("serving", "restarting", "draining", "failed", "stopped")}
    clients = {
        f"client.{end}" for end in ("answered", "failed", "given up", "left", "refused", "timed out", "too long")
    }
    others = {"retraction", "prefix found", "masks awaited", "mask too late", "mask behind a draft token", "profile"}
    others |= {"step.starved", "step.crawls"}
    others |= {"draft token of the draft model", "plan behind draft tokens", "front end absent", "anchor found"}
    others |= {"all stages are busy", "tower run", "tower part", "features found"}
    others |= {"host.dies", "host.is silent", "group.loses a host in a step", "group.loses a host idle"}
    others |= {"client.load", "client.load busy", "client.load failed", "client.unload", "adapter refused"}
    assert faults | deaths | states | clients | others <= seen.keys()


@pytest.mark.parametrize("begins_near", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_server_is_found(defect: str, begins_near: bool, capsys: pytest.CaptureFixture[str]) -> None:
    first = DEFECTS[defect].first_seed if begins_near else 0
    seeds = 1000 if begins_near else 5000
    assert main(["--defect", defect, "--first", str(first), "--seeds", str(seeds)]) == 1
    printed = capsys.readouterr().out
    assert f"--seeds 1 --log --defect {defect}" in printed
    # It is the defect that is found, and not that what it stands in for has another name now.
    assert "AttributeError" not in printed
    assert "TypeError" not in printed
