"""The `openai` package for Python."""

import openai
from checks import ANSWER, MODEL, QUESTION, URL, check, expect, user

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)
chat = client.chat.completions
FIRST = {"model": MODEL, "messages": [user()], "max_tokens": 12, "temperature": 0}
FOLLOW_UP = user("And of Spain?")
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"place": "France"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
FOUND = {"role": "tool", "tool_call_id": "call_1", "content": "Paris"}


@check("models")
def models() -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@check("chat")
def one_answer() -> None:
    answer = chat.create(**FIRST)
    assert ANSWER in answer.choices[0].message.content
    assert answer.usage.completion_tokens > 0
    parts = [{"type": "text", "text": QUESTION}]
    assert chat.create(**FIRST | {"messages": [{"role": "user", "content": parts}]}).choices[0].message.content


@check("chat stream")
def stream() -> None:
    chunks = list(chat.create(**FIRST, stream=True, stream_options={"include_usage": True}))
    assert ANSWER in "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert chunks[-1].usage.completion_tokens > 0


@check("second turn")
def second_turn() -> None:
    with chat.stream(**FIRST) as streamed:
        helped = streamed.get_final_completion()
    for answer in (chat.create(**FIRST), chat.parse(**FIRST), helped):
        message = answer.choices[0].message
        for echoed in (message, message.model_dump()):
            assert chat.create(**FIRST | {"messages": [user(), echoed, FOLLOW_UP]}).choices[0].message.content


@check("completion")
def completion() -> None:
    answer = client.completions.create(model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0)
    assert ANSWER in answer.choices[0].text


@check("completion stream")
def completion_stream() -> None:
    chunks = client.completions.create(
        model=MODEL, prompt="The capital of France is", max_tokens=4, temperature=0, stream=True
    )
    assert ANSWER in "".join(chunk.choices[0].text for chunk in chunks)


@check("log-probabilities")
def log_probabilities() -> None:
    answer = chat.create(**FIRST, logprobs=True, top_logprobs=2)
    assert all(len(token.top_logprobs) == 2 for token in answer.choices[0].logprobs.content)
    answer = client.completions.create(model=MODEL, prompt="Paris", max_tokens=2, echo=True, logprobs=1)
    assert answer.choices[0].logprobs.token_logprobs[0] is None


@check("errors")
def errors() -> None:
    expect(openai.NotFoundError, lambda: chat.create(**FIRST | {"model": "other"}), "does not exist")
    expect(openai.BadRequestError, lambda: chat.create(**FIRST | {"temperature": 3}), "temperature")
    # The demo model's template knows no tools.
    expect(openai.BadRequestError, lambda: chat.create(**FIRST | {"messages": [user(), CALLED, FOUND]}), "tool calls")
