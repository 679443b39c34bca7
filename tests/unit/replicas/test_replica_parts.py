"""The parts of deploy/ray that know neither Ray nor a server; they are imported from where they lie."""

import fcntl
import os
from pathlib import Path

import pytest

from deploy.ray.load import load_of, replicas_for
from deploy.ray.nodes import Claim, NoNodes, cores_of
from deploy.ray.prefixes import BLOCK, PrefixMap, blocks_of, prompt_of, ranked

QUESTION = [{"role": "system", "content": "Be brief." * 100}, {"role": "user", "content": "Hello" * 100}]


@pytest.fixture
def nodes(tmp_path: Path) -> Path:
    """Three nodes, of which the second has no core."""
    for node, cores in (("node0", "0"), ("node1", ""), ("node10", "0-1,0")):
        (tmp_path / "nodes" / node).mkdir(parents=True)
        (tmp_path / "nodes" / node / "cpulist").write_text(f"{cores}\n")
    return tmp_path / "nodes"


def test_a_node_is_claimed_once_and_free_again_when_its_descriptors_are_closed(nodes: Path, tmp_path: Path) -> None:
    first = Claim.take(1, nodes, tmp_path / "locks")
    second = Claim.take(1, nodes, tmp_path / "locks")
    assert first.cores == [0]
    with pytest.raises(NoNodes, match="needs 1 NUMA nodes and 0 are free"):
        Claim.take(1, nodes, tmp_path / "locks")
    first.close()
    with pytest.raises(NoNodes, match="needs 2 NUMA nodes and 1 are free"):
        Claim.take(2, nodes, tmp_path / "locks")
    second.close()
    both = Claim.take(2, nodes, tmp_path / "locks")
    assert len(both.descriptors) == 2
    both.close()


def test_a_node_stays_claimed_while_a_copy_of_its_descriptor_is_open(nodes: Path, tmp_path: Path) -> None:
    claim = Claim.take(2, nodes, tmp_path / "locks")
    copy = fcntl.fcntl(claim.descriptors[0], fcntl.F_DUPFD_CLOEXEC, 0)
    claim.close()
    with pytest.raises(NoNodes, match="1 are free"):
        Claim.take(2, nodes, tmp_path / "locks")
    os.close(copy)
    Claim.take(2, nodes, tmp_path / "locks").close()


def test_the_next_server_on_a_node_listens_where_the_last_one_did(nodes: Path, tmp_path: Path) -> None:
    first = Claim.take(1, nodes, tmp_path / "locks")
    other = Claim.take(1, nodes, tmp_path / "locks")
    assert first.socket != other.socket
    first.close()
    third = Claim.take(1, nodes, tmp_path / "locks")
    assert third.socket == first.socket
    third.close()
    other.close()


def test_cores_of_a_node_are_those_that_the_process_may_use(nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {1, 7})
    assert cores_of(nodes / "node10") == [1]


def test_the_load_of_a_server_is_read_from_its_metrics() -> None:
    said = (
        "# TYPE numaserve_requests gauge\n"
        'numaserve_requests{model_name="m",state="waiting"} 3.0\n'
        'numaserve_requests{state="running",model_name="m"} 8.0\n'
        'numaserve_requests_over_limit_total{key="a"} 9.0\n'
        'numaserve_kv_usage_ratio{model_name="m"} 0.25\n'
    )
    assert load_of(said) == {"running": 8, "waiting": 3, "kv_usage": 0.25}


@pytest.mark.parametrize(
    ("loads", "count"),
    [
        ([(0, 0, 0.0)], 1),
        ([(16, 0, 0.3)], 1),
        ([(16, 1, 0.3)], 2),
        ([(40, 20, 0.3), (4, 0, 0.1)], 4),
        ([(3, 1, 0.95)], 2),  # few requests, and no room for more
        ([(3, 0, 0.95)], 1),  # all of them have their room
    ],
)
def test_replicas_are_as_many_as_requests_and_cache_ask_for(
    loads: list[tuple[float, float, float]], count: int
) -> None:
    said = [dict(zip(("running", "waiting", "kv_usage"), load, strict=True)) for load in loads]
    assert replicas_for(said, target_requests=16, target_kv_usage=0.8) == count


def test_the_next_turn_of_a_conversation_begins_with_the_blocks_of_this_one() -> None:
    turns = [*QUESTION, {"role": "assistant", "content": "Hi" * 200}, {"role": "user", "content": "Bye"}]
    first, second = (blocks_of(prompt_of({"messages": each, "temperature": 0})) for each in (QUESTION, turns))
    assert len(first) >= 5
    assert second[: len(first)] == first
    assert len(second) > len(first)


def test_prompts_that_differ_in_their_beginning_have_no_block_in_common() -> None:
    bodies = [{"prompt": text + "x" * 2000} for text in ("a", "b")] + [{"prompt": "a" + "x" * 2000, "model": "m"}]
    assert len({block for body in bodies for block in blocks_of(prompt_of(body))}) == 3 * (2000 // BLOCK)


@pytest.mark.parametrize(
    "body", [None, [], "text", {}, {"messages": []}, {"prompt": 3}, {"prompt": [[1, 2], "\ud800"]}]
)
def test_any_body_has_a_prompt_if_an_empty_one(body: object) -> None:
    assert isinstance(blocks_of(prompt_of(body)), tuple)


def test_a_prompt_goes_where_most_of_it_was_sent_unless_others_have_far_less_to_do() -> None:
    known: PrefixMap[str] = PrefixMap(100)
    known.learn([b"1", b"2"], "a")
    known.learn([b"1", b"2", b"3"], "b")
    matched = known.matched([b"1", b"2", b"3", b"4"], ["a", "b", "c"])
    assert matched == {"a": 2, "b": 3, "c": 0}
    assert ranked(matched, {"a": 0, "b": 4, "c": 0}, slack=4) == [["b"], ["a", "c"]]
    assert ranked(matched, {"a": 1, "b": 5, "c": 0}, slack=4) == [["c"], ["a"], ["b"]]
    assert ranked({"a": 0, "b": 0}, {"a": 0, "b": 0}, slack=4) == [["a", "b"]]


def test_what_was_sent_to_a_replica_that_is_gone_is_forgotten() -> None:
    known: PrefixMap[str] = PrefixMap(100)
    known.learn([b"1"], "a")
    known.learn([b"1", b"2"], "b")
    known.forget(["a"])
    assert len(known) == 1
    assert known.matched([b"1", b"2"], ["a", "b"]) == {"a": 1, "b": 0}


def test_the_ends_of_prompts_are_forgotten_before_their_beginnings() -> None:
    known: PrefixMap[str] = PrefixMap(3)
    known.learn([b"1", b"2", b"3"], "a")
    known.learn([b"4"], "a")
    assert known.matched([b"1", b"2", b"3"], ["a"]) == {"a": 2}
