"""The `anthropic` package for Python."""

import json
from typing import Literal

import anthropic
from checks import ANSWER, LOOK_UP, MODEL, URL, check, expect, user
from pydantic import BaseModel

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=120)
GREEDY = {"extra_body": {"temperature": 0}}  # this version has no parameter for it
FIRST = {"model": MODEL, "messages": [user()], "max_tokens": 12, **GREEDY}
LONGER = FIRST | {"max_tokens": 60}
TOOL = {"name": LOOK_UP["name"], "description": LOOK_UP["description"], "input_schema": LOOK_UP["parameters"]}
ONE = {"type": "any", "disable_parallel_tool_use": True}  # a small model goes on with calls that are allowed
WITH_TOOL = LONGER | {"tools": [TOOL], "tool_choice": ONE}


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Madrid"]
    on_the_coast: bool


@check("chat")
def one_answer() -> None:
    answer = client.messages.create(**FIRST, system="Answer in a few words.")
    assert answer.content[0].text
    assert ANSWER in client.messages.create(**FIRST).content[0].text
    assert answer.usage.output_tokens > 0
    counted = client.messages.count_tokens(model=MODEL, messages=[user()])
    assert counted.input_tokens > 0


@check("chat stream")
def stream() -> None:
    with client.messages.stream(**FIRST) as streamed:
        assert ANSWER in "".join(streamed.text_stream)
        assert streamed.get_final_message().stop_reason in {"end_turn", "max_tokens"}


@check("second turn")
def second_turn() -> None:
    answer = client.messages.create(**FIRST)
    turns = [user(), {"role": "assistant", "content": answer.content}, user("And of Spain?")]
    assert client.messages.create(**FIRST | {"messages": turns}).content[0].text


@check("tools")
def tools() -> None:
    answer = client.messages.create(**WITH_TOOL)
    assert answer.stop_reason == "tool_use"
    call = next(block for block in answer.content if block.type == "tool_use")
    assert call.input["place"] in {"France", "Spain"}
    result = {"type": "tool_result", "tool_use_id": call.id, "content": ANSWER}
    turns = [user(), {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    asked = WITH_TOOL | {"messages": turns, "tool_choice": {"type": "none"}}
    assert client.messages.create(**asked).content[0].text


@check("tools stream")
def tools_stream() -> None:
    with client.messages.stream(**WITH_TOOL) as streamed:
        message = streamed.get_final_message()
    call = next(block for block in message.content if block.type == "tool_use")
    assert call.input["place"] in {"France", "Spain"}


@check("structured output")
def structured() -> None:
    assert client.messages.parse(**LONGER, output_format=City).parsed_output.name in {"Paris", "Madrid"}
    with client.messages.stream(**LONGER, output_format=City) as streamed:
        assert streamed.get_final_message().parsed_output.name in {"Paris", "Madrid"}
    place = {"type": "json_schema", "schema": LOOK_UP["parameters"]}
    (block,) = client.messages.create(**LONGER, output_config={"format": place}).content
    assert json.loads(block.text)["place"] in {"France", "Spain"}


@check("errors")
def errors() -> None:
    expect(anthropic.NotFoundError, lambda: client.messages.create(**FIRST | {"model": "other"}), "does not exist")
    expect(
        anthropic.BadRequestError,
        lambda: client.messages.create(**FIRST | {"extra_body": {"temperature": 3}}),
        "temperature",
    )
