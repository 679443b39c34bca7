"""The `openai` package for Python."""

import json
from typing import Literal

import openai
from checks import ANSWER, LOOK_UP, MODEL, QUESTION, URL, check, expect, user
from pydantic import BaseModel

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)
chat = client.chat.completions
responses = client.responses
FIRST = {"model": MODEL, "messages": [user()], "max_tokens": 12, "temperature": 0}
FOLLOW_UP = user("And of Spain?")
TOOLS = [{"type": "function", "function": LOOK_UP}]
WITH_TOOL = {"model": MODEL, "messages": [user()], "max_tokens": 60, "temperature": 0, "tools": TOOLS}
ONE_CALL = {"parallel_tool_calls": False}  # a small model goes on with calls that are allowed
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"place": "France"}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
FOUND = {"role": "tool", "tool_call_id": "call_1", "content": "Paris"}
RESPONSE = {"model": MODEL, "input": QUESTION, "max_output_tokens": 12, "temperature": 0}
LONGER = RESPONSE | {"max_output_tokens": 60}


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


class City(BaseModel):
    name: Literal["Paris", "Madrid"]
    on_the_coast: bool


@check("tools")
def tools() -> None:
    for choice in ("required", {"type": "function", "function": {"name": "look_up"}}):
        answer = chat.create(**WITH_TOOL, **ONE_CALL, tool_choice=choice).choices[0]
        assert answer.finish_reason == "tool_calls"
        call = answer.message.tool_calls[0]
        assert call.function.name == "look_up"
        assert json.loads(call.function.arguments)["place"] in {"France", "Spain"}
        result = {"role": "tool", "tool_call_id": call.id, "content": "Paris"}
        assert chat.create(**WITH_TOOL | {"messages": [user(), answer.message, result]}).choices[0].message.content
    assert chat.create(**WITH_TOOL).choices[0].finish_reason
    strict = [{"type": "function", "function": LOOK_UP | {"strict": True}}]
    assert chat.create(**WITH_TOOL | {"tools": strict}, tool_choice="required").choices[0].message.tool_calls
    older = {name: value for name, value in WITH_TOOL.items() if name != "tools"}
    answer = chat.create(**older, functions=[LOOK_UP], function_call={"name": "look_up"})
    assert answer.choices[0].message.function_call.name == "look_up"
    assert chat.create(**FIRST | {"messages": [user(), CALLED, FOUND]}).choices[0].message.content


@check("tools stream")
def tools_stream() -> None:
    with chat.stream(**WITH_TOOL, **ONE_CALL, tool_choice="required") as streamed:
        message = streamed.get_final_completion().choices[0].message
    assert json.loads(message.tool_calls[0].function.arguments)["place"] in {"France", "Spain"}


@check("structured output")
def structured() -> None:
    answer = chat.parse(**FIRST | {"max_tokens": 60}, response_format=City)
    assert answer.choices[0].message.parsed.name in {"Paris", "Madrid"}
    with chat.stream(**FIRST | {"max_tokens": 60}, response_format=City) as streamed:
        assert streamed.get_final_completion().choices[0].message.parsed
    answer = client.completions.create(
        model=MODEL, prompt="Yes or no?", max_tokens=8, extra_body={"structured_outputs": {"choice": ["yes", "no"]}}
    )
    assert answer.choices[0].text in {"yes", "no"}


@check("chat")
def response() -> None:
    answer = responses.create(**RESPONSE, instructions="Be brief.", metadata={"a": "b"})
    assert ANSWER in answer.output_text
    assert answer.usage.output_tokens > 0
    assert responses.retrieve(answer.id) == answer
    assert [item.content[0].text for item in responses.input_items.list(answer.id)] == [QUESTION]
    responses.delete(answer.id)


@check("chat stream")
def response_stream() -> None:
    with responses.stream(**RESPONSE) as streamed:
        text = "".join(event.delta for event in streamed if event.type == "response.output_text.delta")
        assert text == streamed.get_final_response().output_text
    assert ANSWER in text


@check("second turn")
def response_second_turn() -> None:
    with responses.stream(**RESPONSE) as streamed:
        helped = streamed.get_final_response()
    for answer in (responses.create(**RESPONSE), responses.parse(**RESPONSE), helped):
        echoed = [user(), *answer.output, FOLLOW_UP]
        followed = responses.create(**RESPONSE | {"input": echoed})
        assert followed.output_text
        references = [{"type": "item_reference", "id": item.id} for item in answer.output]
        referring = responses.create(**RESPONSE | {"input": [user(), *references, FOLLOW_UP]})
        assert referring.output_text == followed.output_text
        chained = responses.create(**RESPONSE | {"input": [FOLLOW_UP]}, previous_response_id=answer.id)
        assert chained.output_text == followed.output_text
        pages = responses.input_items.list(chained.id, order="asc", limit=2)
        assert [item.role for item in pages] == ["user", "assistant", "user"]


@check("log-probabilities")
def response_logprobs() -> None:
    asked = RESPONSE | {"top_logprobs": 2, "include": ["message.output_text.logprobs"]}
    answer = responses.create(**asked)
    tokens = answer.output[0].content[0].logprobs
    assert "".join(token.token for token in tokens) == answer.output_text
    assert all(len(token.top_logprobs) == 2 for token in tokens)
    with responses.stream(**asked) as streamed:
        events = [event for event in streamed if event.type == "response.output_text.delta"]
    assert [each.token for event in events for each in event.logprobs] == [token.token for token in tokens]


class LookUp(BaseModel):
    """Finds the capital of a country."""

    place: Literal["France", "Spain"]


@check("tools")
def response_tools() -> None:
    called = responses.parse(
        **LONGER, tools=[openai.pydantic_function_tool(LookUp)], tool_choice="required", parallel_tool_calls=False
    )
    call = called.output[-1]
    assert call.parsed_arguments.place in {"France", "Spain"}
    result = {"type": "function_call_output", "call_id": call.call_id, "output": ANSWER}
    for more in ({"input": [user(), *called.output, result]}, {"input": [result], "previous_response_id": called.id}):
        assert responses.create(**RESPONSE | more).output_text


@check("structured output")
def response_structured() -> None:
    assert responses.parse(**LONGER, text_format=City).output_parsed.name in {"Paris", "Madrid"}
    with responses.stream(**LONGER, text_format=City) as streamed:
        assert streamed.get_final_response().output_parsed.name in {"Paris", "Madrid"}


@check("errors")
def errors() -> None:
    expect(openai.NotFoundError, lambda: chat.create(**FIRST | {"model": "other"}), "does not exist")
    expect(openai.BadRequestError, lambda: chat.create(**FIRST | {"temperature": 3}), "temperature")
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"$ref": "https://example.com/x"}}}
    expect(openai.BadRequestError, lambda: chat.create(**FIRST, response_format=schema), "response_format")
    expect(openai.NotFoundError, lambda: responses.create(**RESPONSE | {"model": "other"}), "does not exist")
    expect(openai.BadRequestError, lambda: responses.create(**RESPONSE, background=True), "background")
