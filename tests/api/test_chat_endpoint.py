import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from numaserve.server.surfaces.openai.chats.chat_schema import ChatRequest
from numaserve.server.surfaces.openai.logprobs import TokenNames, chat_entries
from numaserve.workers.interface.protocol import TokenLogprobs
from starlette.testclient import TestClient

from tests.support.api_fakes import CONTEXT, EOS, MODEL, REPLY, TURN, ByteTokenizer, FakeEngine

USER = [{"role": "user", "content": "hi"}]
PROMPT = [TURN, *b"user\nhi", TURN]


def chat(client: TestClient, **fields: Any) -> Any:
    return client.post("/v1/chat/completions", json={"model": MODEL, "messages": USER, **fields})


def events(text: str) -> list[Any]:
    assert text.endswith("data: [DONE]\n\n")
    return [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]


def test_an_answer_has_exactly_openai_s_shape(client: TestClient, engine: FakeEngine) -> None:
    engine.cached_tokens = 4
    answer = chat(client).json()
    assert answer.pop("id").startswith("chatcmpl-")
    assert isinstance(answer.pop("created"), int)
    generated = len(REPLY.encode()) + 1
    assert answer == {
        "object": "chat.completion",
        "model": MODEL,
        "system_fingerprint": "numaserve-1.2.3",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": REPLY, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": len(PROMPT),
            "completion_tokens": generated,
            "total_tokens": len(PROMPT) + generated,
            "prompt_tokens_details": {"cached_tokens": 4},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def test_a_stream_begins_with_the_role_and_ends_with_the_reason(client: TestClient) -> None:
    answer = chat(client, stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    chunks = events(answer.text)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert all("usage" not in chunk for chunk in chunks)
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert "".join(choice["delta"].get("content", "") for choice in choices) == REPLY
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]


def test_a_stream_with_usage_ends_with_a_chunk_without_choices(client: TestClient) -> None:
    chunks = events(chat(client, stream=True, stream_options={"include_usage": True}).text)
    assert all(chunk["usage"] is None for chunk in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == len(REPLY.encode()) + 1


def test_the_logprobs_of_a_long_answer_are_not_left_to_its_end(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []

    def entries(names: TokenNames, tokens: Sequence[TokenLogprobs]) -> list[msgspec.Raw]:
        written.append(len(tokens))
        return chat_entries(names, tokens)

    monkeypatch.setattr("numaserve.server.surfaces.openai.chats.chat_answer.chat_entries", entries)
    answer = chat(client, logprobs=True, top_logprobs=2).json()
    assert len(answer["choices"][0]["logprobs"]["content"]) == sum(written)
    assert max(written) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_have_an_entry_a_token(client: TestClient, stream: bool) -> None:
    answer = chat(client, logprobs=True, top_logprobs=2, stream=stream)
    choices = [c["choices"][0] for c in events(answer.text)] if stream else [answer.json()["choices"][0]]
    content = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert content.pop()["token"] == "</s>"
    assert bytes(byte for entry in content for byte in entry["bytes"]) == REPLY.encode()
    assert content[0] == {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [
            {"token": "H", "logprob": -0.5, "bytes": [72]},
            {"token": "\0", "logprob": -9999.0, "bytes": [0]},
        ],
    }
    assert content[1]["token"] == "\\xc3"  # half of a character


@pytest.mark.parametrize("stream", [False, True])
def test_n_gives_n_choices_with_consecutive_seeds(client: TestClient, engine: FakeEngine, stream: bool) -> None:
    answer = chat(client, n=3, seed=7, stream=stream, max_tokens=1)
    assert [request.sampling.seed for request in engine.admitted] == [7, 8, 9]
    assert len({request.request_id for request in engine.admitted}) == 3
    if stream:
        ends = [c["choices"][0]["index"] for c in events(answer.text) if c["choices"][0]["finish_reason"]]
        assert sorted(ends) == [0, 1, 2]
    else:
        assert [choice["index"] for choice in answer.json()["choices"]] == [0, 1, 2]
        assert answer.json()["usage"]["prompt_tokens"] == len(PROMPT)
        assert answer.json()["usage"]["completion_tokens"] == 3


def test_without_a_limit_all_of_the_context_may_be_filled(client: TestClient, engine: FakeEngine) -> None:
    chat(client)
    assert engine.admitted[0].prompt == PROMPT
    assert engine.admitted[0].max_new_tokens == CONTEXT - len(PROMPT)


@pytest.mark.parametrize(
    "fields", [{"max_tokens": CONTEXT}, {"messages": [{"role": "user", "content": "x" * CONTEXT}]}]
)
def test_what_does_not_fit_the_context_is_refused(client: TestClient, fields: dict[str, Any]) -> None:
    answer = chat(client, **fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert answer.json()["error"]["param"] == "messages"


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(client: TestClient, engine: FakeEngine) -> None:
    answer = chat(client, messages=[{"role": "user", "content": "x" * (CONTEXT * 256 + 1)}])
    assert "characters" in answer.json()["error"]["message"]


def test_content_may_be_a_list_of_text_parts(client: TestClient, engine: FakeEngine) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat(client, messages=[{"role": "developer", "content": parts}])
    assert engine.admitted[0].prompt == [TURN, *b"system\na\nb", TURN]


def test_thinking_is_passed_to_the_template(client: TestClient, engine: FakeEngine) -> None:
    chat(client, chat_template_kwargs={"enable_thinking": True})
    assert engine.admitted[0].prompt == [ord("T"), *PROMPT]


def test_an_assistant_message_as_clients_echo_it_is_taken(client: TestClient) -> None:
    echoed: dict[str, object] = {
        "role": "assistant",
        "content": "yes",
        "refusal": None,
        "tool_calls": None,
        "annotations": [],
    }
    assert chat(client, messages=[*USER, echoed, *USER]).status_code == 200


def test_the_template_s_refusal_is_the_client_s_error(client: TestClient) -> None:
    answer = chat(client, messages=[{"role": "user", "content": "refuse me"}])
    assert answer.status_code == 400
    assert "roles must alternate" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "messages"


def test_end_of_sequence_ids_stop_unless_ignored(client: TestClient, engine: FakeEngine) -> None:
    chat(client, stop_token_ids=[5])
    chat(client, stop_token_ids=[5], ignore_eos=True)
    assert [request.stop_token_ids for request in engine.admitted] == [{EOS, 5}, {5}]


def test_usage_so_far_comes_with_every_chunk_when_asked_for(client: TestClient) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(chat(client, stream=True, stream_options=options).text)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts[0] == 0  # the chunk with the role
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] == len(REPLY.encode()) + 1
    assert len({chunk["usage"]["prompt_tokens"] for chunk in chunks}) == 1
    assert all(
        chunk["usage"]["total_tokens"] == chunk["usage"]["prompt_tokens"] + chunk["usage"]["completion_tokens"]
        for chunk in chunks
    )


def test_usage_with_every_chunk_needs_usage_at_all(client: TestClient) -> None:
    chunks = events(chat(client, stream=True, stream_options={"continuous_usage_stats": True}).text)
    assert not any("usage" in chunk for chunk in chunks)


ECHOED: list[dict[str, Any]] = [
    {"content": "hi", "refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None},
    {"content": "hi", "parsed": {"any": ["thing"]}, "tool_calls": []},
    {"content": "hi", "provider_specific_fields": {"refusal": None}, "reasoning_content": "so", "reasoning": "so"},
    {"content": "hi", "id": "msg-1", "cache_control": {"type": "ephemeral"}, "prefix": False},
    {"content": None, "tool_calls": []},
    {"content": None},
    {"content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]},
]


@pytest.mark.parametrize("echoed", ECHOED)
def test_an_answer_may_come_back_as_client_libraries_hold_it(client: TestClient, echoed: dict[str, Any]) -> None:
    user = {"role": "user", "content": "x"}
    answer = chat(client, messages=[user, {"role": "assistant", **echoed}, user])
    assert answer.status_code == 200
    assert "X-Numaserve-Ignored" not in answer.headers


def test_tool_calls_of_earlier_turns_reach_a_template_that_writes_them() -> None:
    function = {"name": "f", "arguments": '{"x": [1]}'}
    messages = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
    ]
    conversation = ChatRequest.model_validate({"messages": messages}).messages
    assert conversation.needs_tools
    call, result = conversation.messages[1:]
    assert call["tool_calls"] == [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": [1]}}}]
    assert result == {"role": "tool", "content": "42", "tool_call_id": "1"}


ANSWERED = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, "}]


def test_the_last_message_is_continued_where_it_is_left_open(client: TestClient, engine: FakeEngine) -> None:
    for fields in ({"continue_final_message": True}, {"add_generation_prompt": False}, {}):
        chat(client, messages=ANSWERED, **fields)
    texts = [ByteTokenizer().decode(request.prompt, skip_special_tokens=False) for request in engine.admitted]
    rendered = "<t>user\nhi<t>assistant\nWell, "
    assert texts == [rendered, rendered, f"{rendered}<t>"]


@pytest.mark.parametrize(
    "fields",
    [
        {"continue_final_message": True, "add_generation_prompt": True},
        {"continue_final_message": True, "messages": [{"role": "user", "content": " "}]},
    ],
)
def test_what_cannot_be_continued_is_refused(client: TestClient, engine: FakeEngine, fields: dict[str, Any]) -> None:
    assert chat(client, **{"messages": ANSWERED} | fields).status_code == 400
    assert engine.admitted == []


@pytest.mark.parametrize(("messages", "echoed"), [(ANSWERED, "Well, "), (ANSWERED[:1], "")])
def test_an_answer_may_begin_with_what_it_continues(
    client: TestClient, messages: list[dict[str, str]], echoed: str
) -> None:
    fields = {"messages": messages, "echo": True, "continue_final_message": True}
    assert chat(client, **fields).json()["choices"][0]["message"]["content"] == echoed + REPLY
    deltas = [event["choices"][0]["delta"] for event in events(chat(client, **fields, stream=True).text)]
    assert "".join(delta.get("content", "") for delta in deltas) == echoed + REPLY


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_token_ids_are_given_beside_the_text(client: TestClient, path: str) -> None:
    body = {"model": MODEL, "n": 2, "return_token_ids": True, "max_tokens": 50}
    body |= {"messages": USER} if "chat" in path else {"prompt": PROMPT}
    tokens = [*REPLY.encode(), EOS]
    whole = client.post(path, json=body).json()
    assert [choice["token_ids"] for choice in whole["choices"]] == [tokens, tokens]
    chunks = events(client.post(path, json=body | {"stream": True}).text)
    for index in range(2):
        of_choice = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert [token for choice in of_choice for token in choice.get("token_ids", ())] == tokens
    for answer in (whole, chunks[0]):
        assert (answer if "chat" in path else answer["choices"][0])["prompt_token_ids"] == PROMPT
    plain = client.post(path, json=body | {"return_token_ids": False}).text
    assert "token_ids" not in plain


def test_tokens_may_be_named_by_their_ids(client: TestClient) -> None:
    answer = chat(client, logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True).json()
    [first, *_] = answer["choices"][0]["logprobs"]["content"]
    assert (first["token"], first["top_logprobs"][0]["token"]) == ("token_id:72", "token_id:72")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_a_prompt_has_log_probabilities_of_its_own(client: TestClient, path: str) -> None:
    body = {"model": MODEL, "prompt_logprobs": 2, "max_tokens": 50}
    chatting = "chat" in path
    body |= {"messages": USER, "logprobs": True} if chatting else {"prompt": PROMPT, "logprobs": 0}
    answer = client.post(path, json=body).json()
    [choice] = answer["choices"]
    first, *rest = (answer if chatting else choice)["prompt_logprobs"]
    assert (first, len(rest)) == (None, len(PROMPT) - 1)
    assert rest[0] == {
        "117": {"logprob": -0.5, "rank": 1, "decoded_token": "u"},
        "0": {"logprob": -9999.0, "rank": 2, "decoded_token": "\0"},
    }
    logprobs = choice["logprobs"]
    of_first = logprobs["content"][0]["top_logprobs"] if chatting else logprobs["top_logprobs"][0]
    assert of_first == ([] if chatting else {"H": -0.5})
    plain = client.post(path, json=body | {"logprobs": None}).json()
    assert plain["choices"][0]["logprobs"] is None
    assert client.post(path, json=body | {"stream": True}).json()["error"]["param"] == "prompt_logprobs"


def test_a_token_that_is_not_among_the_likeliest_has_no_rank(client: TestClient) -> None:
    answer = chat(client, prompt_logprobs=0).json()
    assert answer["prompt_logprobs"][1] == {"117": {"logprob": -0.5, "rank": None, "decoded_token": "u"}}
