"""The `ollama` package for Python."""

import json

import ollama
from checks import ANSWER, MODEL, URL, check, expect, user

client = ollama.Client(URL)
GREEDY = {"temperature": 0, "num_predict": 12}
FIRST = {"model": MODEL, "messages": [user()], "options": GREEDY}
PROMPT = {"model": MODEL, "prompt": "The capital of France is", "raw": True, "options": GREEDY}
FOLLOW_UP = user("And of Spain?")
CALLED = ollama.Message(
    role="assistant",
    tool_calls=[{"function": {"name": "look_up", "arguments": {"place": "France"}}}],
)
FOUND = {"role": "tool", "tool_name": "look_up", "content": "Paris"}


@check("models")
def models() -> None:
    assert [model.model for model in client.list().models] == [f"{MODEL}:latest"]
    assert [model.model for model in client.ps().models] == [f"{MODEL}:latest"]
    shown = client.show(MODEL)
    assert "completion" in shown.capabilities
    assert any(name.endswith(".context_length") and value > 0 for name, value in shown.modelinfo.items())


@check("chat")
def one_answer() -> None:
    answer = client.chat(**FIRST)
    assert ANSWER in answer.message.content
    assert (answer.done, answer.done_reason) in {(True, "stop"), (True, "length")}
    assert answer.eval_count > 0
    assert answer.total_duration > answer.eval_duration > 0
    assert client.chat(**FIRST | {"model": f"{MODEL}:latest"}, keep_alive="5m", think=False).message.content
    assert client.chat(MODEL).done_reason == "load"


@check("chat stream")
def stream() -> None:
    parts = list(client.chat(**FIRST, stream=True))
    assert ANSWER in "".join(part.message.content for part in parts)
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].prompt_eval_count > 0


@check("second turn")
def second_turn() -> None:
    message = client.chat(**FIRST).message
    for echoed in (message, message.model_dump()):
        assert client.chat(**FIRST | {"messages": [user(), echoed, FOLLOW_UP]}).message.content


@check("tools")
def tools() -> None:
    assert client.chat(**FIRST | {"messages": [user(), CALLED, FOUND]}).message.content


@check("completion")
def completion() -> None:
    assert ANSWER in client.generate(**PROMPT).response
    assert client.generate(MODEL, "Say hello.", system="Be brief.", options=ollama.Options(**GREEDY)).response


@check("completion stream")
def completion_stream() -> None:
    assert ANSWER in "".join(part.response for part in client.generate(**PROMPT, stream=True))


@check("log-probabilities")
def log_probabilities() -> None:
    for answer in (client.chat(**FIRST, logprobs=True, top_logprobs=2), client.generate(**PROMPT, logprobs=True)):
        assert len(answer.logprobs) == answer.eval_count
        assert all(entry.logprob <= 0 for entry in answer.logprobs)


@check("structured output")
def structured_output() -> None:
    schema = {"type": "object", "properties": {"capital": {"enum": ["Paris", "Rome"]}}, "required": ["capital"]}
    assert json.loads(client.chat(**FIRST, format=schema).message.content)["capital"] in {"Paris", "Rome"}
    options = GREEDY | {"num_predict": 200}
    answer = client.generate(MODEL, "Give a JSON object.", format="json", options=options)
    assert answer.done_reason == "length" or isinstance(json.loads(answer.response), dict)


@check("errors")
def errors() -> None:
    expect(ollama.ResponseError, lambda: client.chat(**FIRST | {"model": "other"}), "does not exist", "404")
    expect(ollama.ResponseError, lambda: client.chat(**FIRST | {"options": {"temperature": 3}}), "temperature", "400")
    expect(ollama.ResponseError, lambda: list(client.generate("other", "x", stream=True)), "does not exist")
