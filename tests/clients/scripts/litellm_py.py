"""litellm, as a client of an OpenAI server and of a hosted vLLM."""

import gc
import json
import os
from typing import Literal

from checks import ANSWER, LOOK_UP, MODEL, URL, check, expect, user
from pydantic import BaseModel

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it asks the net for prices otherwise

import litellm

# It leaves what follows the end of hosted_vllm's streams unread. Where a collection closes one while httpcore holds the
# lock of its pool, it waits for that lock in the thread that has it.
gc.disable()
PROVIDERS = ("openai", "hosted_vllm")
FOLLOW_UP = user("And of Spain?")
CALL = {"id": "call_1", "type": "function", "function": {"name": "look_up", "arguments": '{"place": "France"}'}}
CALLED = litellm.Message(content=None, role="assistant", tool_calls=[CALL])
FOUND = {"role": "tool", "tool_call_id": "call_1", "content": "Paris"}


def ask(provider: str = "openai", **more: object) -> object:
    arguments = {"messages": [user()], "max_tokens": 12, "temperature": 0, "num_retries": 0, **more}
    arguments.setdefault("model", f"{provider}/{MODEL}")
    return litellm.completion(**arguments, api_base=f"{URL}/v1", api_key="none")


@check("chat")
def chat() -> None:
    for provider in PROVIDERS:
        assert ANSWER in ask(provider).choices[0].message.content


@check("chat stream")
def stream() -> None:
    for provider in PROVIDERS:
        chunks = list(ask(provider, stream=True, stream_options={"include_usage": True}))
        assert ANSWER in "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


@check("second turn")
def second_turn() -> None:
    for provider in PROVIDERS:
        streamed = litellm.stream_chunk_builder(list(ask(provider, stream=True)))
        for answer in (ask(provider), streamed):
            message = answer.choices[0].message
            for echoed in (message, message.model_dump()):
                assert ask(provider, messages=[user(), echoed, FOLLOW_UP]).choices[0].message.content


def complete(**more: object) -> object:
    return litellm.text_completion(
        model=f"text-completion-openai/{MODEL}",
        prompt="The capital of France is",
        max_tokens=4,
        temperature=0,
        api_base=f"{URL}/v1",
        api_key="none",
        **more,
    )


@check("completion")
def completion() -> None:
    assert ANSWER in complete().choices[0].text


@check("completion stream")
def completion_stream() -> None:
    assert ANSWER in "".join(chunk.choices[0].text or "" for chunk in complete(stream=True))


@check("log-probabilities")
def log_probabilities() -> None:
    assert ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content


@check("tools")
def tools() -> None:
    tool = {"type": "function", "function": LOOK_UP}
    answer = ask(tools=[tool], tool_choice="required", parallel_tool_calls=False, max_tokens=60).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert json.loads(answer.message.tool_calls[0].function.arguments)["place"] in {"France", "Spain"}
    for echoed in (CALLED, CALLED.model_dump()):
        assert ask(messages=[user(), echoed, FOUND]).choices[0].message.content


@check("tools stream")
def tools_stream() -> None:
    tool = {"type": "function", "function": LOOK_UP}
    asked = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 60}
    for provider in PROVIDERS:
        message = litellm.stream_chunk_builder(list(ask(provider, **asked, stream=True))).choices[0].message
        assert json.loads(message.tool_calls[0].function.arguments)["place"] in {"France", "Spain"}


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Madrid"]
    on_the_coast: bool


@check("structured output")
def structured() -> None:
    for provider in PROVIDERS:
        answer = ask(provider, response_format=City, max_tokens=60).choices[0].message.content
        assert City.model_validate_json(answer).name in {"Paris", "Madrid"}


@check("errors")
def errors() -> None:
    expect(litellm.NotFoundError, lambda: ask(model="openai/other"), "does not exist")
    expect(litellm.BadRequestError, lambda: ask(temperature=3), "temperature")
