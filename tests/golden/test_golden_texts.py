"""The parts that records leave out, and the report of differences."""

from pathlib import Path

import pytest

from tests.golden.all_works import WORKS
from tests.golden.cases import Entry, Served
from tests.golden.compare import differences
from tests.golden.normalise import normalise, normalise_metrics, without_numbers
from tests.golden.recording import write


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"id":"chatcmpl-d66703e7ae584a3d","created":1795733517}', '{"id":"chatcmpl-ID","created":TIME}'),
        ('{"logprob":-3.25,"tokens":[5,6]}', '{"logprob":-3.25,"tokens":[5,6]}'),
        ('{"url":"http://127.0.0.1:4711/v1"}', '{"url":"http://ADDRESS/v1"}'),
        ('{"root":"/a/b/models/x"}', '{"root":"MODELS/x"}'),
        ('{"created_at":"2026-11-26T22:51:56.7Z","eval_duration":12}', '{"created_at":TIME,"eval_duration":TIME}'),
        ('{"starved":true,"loaded":true}', '{"starved":BOOLEAN,"loaded":true}'),
    ],
)
def test_ids_times_and_places_are_left_out_and_nothing_else(text: str, expected: str) -> None:
    assert normalise(text, folders={"/a/b/models": "MODELS"}) == expected


def test_metrics_keep_names_labels_and_what_requests_determine() -> None:
    text = '# HELP x A text.\nnumaserve_prompt_tokens_total{model_name="m"} 7.0\n'
    timed = ("numaserve_seconds_sum", "numaserve_worker_starved_seconds_total")
    samples, expected = ("\n".join(f"{name} {value}" for name in timed) for value in (1.5, "VALUE"))
    assert normalise_metrics(text + samples) == text + expected


def test_no_two_cases_have_the_same_name() -> None:
    names = [f"{work.name}: {case.name}" for work in WORKS if isinstance(work, Served) for case in work.cases]
    names += [work.name for work in WORKS]
    assert len({*names}) == len(names)


def test_names_with_digits_are_no_numbers() -> None:
    assert without_numbers('{"a1":-1.5e3,"b":[2],"c":"v2"}') == '{"a1":N,"b":[N],"c":"v2"}'


def test_differences_are_shown_with_the_request_and_what_surrounds_them(tmp_path: Path) -> None:
    for name, body in (("a", '{"x":1,"y":null}'), ("b", '{"x":1}')):
        write([Entry("case", "GET /x", 200, {}, body), Entry(name, "", 0, {}, "")], tmp_path / name)
    found = [*differences(tmp_path / "a", tmp_path / "b")]
    assert len(found) == 3
    (shown,) = [text for text in found if text.startswith("case")]
    assert "GET /x" in shown
    assert "from character 6 of 16 and 7" in shown
    write([Entry("case", "GET /x", 200, {}, "same")], tmp_path / "c")
    assert [*differences(tmp_path / "c", tmp_path / "c")] == []
