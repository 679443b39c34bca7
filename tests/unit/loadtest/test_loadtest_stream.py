"""When tokens count as seen, and which ends of a stream are failures."""

import json

import pytest
from numaserve.server.loadtest.stream import StreamError, StreamReader
from numaserve.server.loadtest.workload.requests import Outcome

DONE = b"data: [DONE]\n\n"


def event(**payload: object) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def text(content: str, finish: str | None = None) -> bytes:
    return event(choices=[{"index": 0, "text": content, "finish_reason": finish}])


def chat(finish: str | None = None, **delta: object) -> bytes:
    return event(choices=[{"index": 0, "delta": delta, "finish_reason": finish}])


def usage(prompt: int, completion: int, cached: int | None = None) -> bytes:
    details = None if cached is None else {"cached_tokens": cached}
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "prompt_tokens_details": details}
    return event(choices=[], usage=counts)


def read(*parts: bytes) -> Outcome:
    """The outcome of a stream whose parts come one second after another."""
    outcome = Outcome(input_tokens=7)
    reader = StreamReader(outcome)
    for second, part in enumerate(parts, 1):
        reader.feed(part, float(second))
    reader.close()
    return outcome


def test_a_stream_gives_times_and_counts() -> None:
    outcome = read(text("a"), text("b"), text("c", "length"), usage(50, 3, cached=32), DONE)
    assert (outcome.ttft_s, outcome.itls_s, outcome.e2e_s) == (1.0, [1.0, 1.0], 3.0)
    assert (outcome.input_tokens, outcome.output_tokens, outcome.cached_tokens) == (50, 3, 32)
    assert outcome.tpot_s == 1.0


def test_without_usage_chunks_with_text_are_counted() -> None:
    outcome = read(text("a"), text(""), text("b"), text("", "stop"), DONE)
    assert (outcome.with_usage, outcome.input_tokens, outcome.output_tokens) == (False, 7, 2)


def test_events_without_text_are_no_tokens_but_the_end_counts() -> None:
    outcome = read(text(""), text("a"), text(""), text("b"), text("", "stop"), usage(5, 3), DONE)
    assert (outcome.ttft_s, outcome.itls_s, outcome.e2e_s) == (2.0, [2.0], 5.0)


def test_an_answer_without_any_text_has_its_first_token_at_the_end() -> None:
    outcome = read(text(""), text("", "stop"), usage(5, 1), DONE)
    assert (outcome.ttft_s, outcome.itls_s, outcome.e2e_s, outcome.tpot_s) == (2.0, [], 2.0, None)


def test_the_role_of_a_chat_answer_is_no_token() -> None:
    outcome = read(chat(role="assistant", content=""), chat(content="a"), chat(reasoning_content="b"), chat("stop"))
    assert (outcome.ttft_s, outcome.itls_s, outcome.e2e_s) == (2.0, [1.0], 4.0)


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_events_may_be_cut_anywhere(size: int) -> None:
    stream = text("a") + b": a comment\n\n" + text("b", "stop").replace(b"\n", b"\r\n") + usage(4, 2) + DONE
    outcome = read(*(stream[at : at + size] for at in range(0, len(stream), size)))
    assert (outcome.input_tokens, outcome.output_tokens, len(outcome.itls_s)) == (4, 2, 1)


def test_usage_that_comes_with_every_chunk_is_read_at_last() -> None:
    counts = [{"prompt_tokens": 4, "completion_tokens": n} for n in (1, 2)]
    first = event(choices=[{"text": "a"}], usage=counts[0])
    outcome = read(first, event(choices=[{"text": "b", "finish_reason": "stop"}], usage=counts[1]))
    assert outcome.output_tokens == 2


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [text("a"), event(error={"message": "out of memory"}), DONE],
            "the stream ended with an error: out of memory$",
        ),
        ([text("a"), text("", "abort")], "abort"),
        ([text("a")], "before the generation finished"),
        ([DONE], "before the generation finished"),
        ([b'{"choices": [{"text": "not streamed", "finish_reason": "stop"}]}'], "not an event stream"),
        ([b"data: nonsense\n\n"], "has an invalid event"),
    ],
)
def test_a_stream_that_breaks_off_is_a_failure(parts: list[bytes], message: str) -> None:
    with pytest.raises(StreamError, match=message):
        read(*parts)


def test_an_error_of_null_is_none() -> None:
    assert read(event(choices=[{"text": "a", "finish_reason": "stop"}], error=None)).error is None
