"""`openai-agents`, over POST /v1/responses and over chat."""

import asyncio
from collections.abc import Iterator
from typing import Literal

import openai
from agents import (
    Agent,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from checks import ANSWER, MODEL, QUESTION, URL, check, user
from pydantic import BaseModel

set_tracing_disabled(True)
FOLLOW_UP = user("And of Spain?")
SETTINGS = ModelSettings(temperature=0, max_tokens=80)


def models() -> Iterator[Model]:
    """The model over both endpoints; a client belongs to one event loop, and each run has its own."""
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        client = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)
        yield kind(MODEL, client)


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Madrid"]
    on_the_coast: bool


@function_tool
def look_up(place: Literal["France", "Spain"]) -> str:
    """Finds the capital of a country."""
    return ANSWER


@check("chat")
def one_answer() -> None:
    for model in models():
        assert Runner.run_sync(Agent("a", model=model, model_settings=SETTINGS), QUESTION).final_output


@check("chat stream")
def stream() -> None:
    async def run(model: Model) -> str:
        streamed = Runner.run_streamed(Agent("a", model=model, model_settings=SETTINGS), QUESTION)
        async for _ in streamed.stream_events():
            pass
        return streamed.final_output

    for model in models():
        assert asyncio.run(run(model))


@check("second turn")
def second_turn() -> None:
    for model in models():
        agent = Agent("a", model=model, model_settings=SETTINGS)
        said = Runner.run_sync(agent, QUESTION).to_input_list()
        assert Runner.run_sync(agent, [*said, FOLLOW_UP]).final_output
    first, second = (Agent("a", model=next(models()), model_settings=SETTINGS) for _ in range(2))
    stored = Runner.run_sync(first, QUESTION).last_response_id
    assert Runner.run_sync(second, [FOLLOW_UP], previous_response_id=stored).final_output


@check("log-probabilities")
def log_probabilities() -> None:
    settings = ModelSettings(temperature=0, max_tokens=12, top_logprobs=2)
    (answer,) = Runner.run_sync(Agent("a", model=next(models()), model_settings=settings), QUESTION).raw_responses
    part = answer.output[0].content[0]
    assert "".join(token.token for token in part.logprobs) == part.text


@check("tools")
def a_round_of_tools() -> None:
    # The tool is not demanded again once it was called.
    must = ModelSettings(temperature=0, max_tokens=80, tool_choice="look_up", parallel_tool_calls=False)
    for model in models():
        agent = Agent("a", model=model, model_settings=must, tools=[look_up])
        ended = Runner.run_sync(agent, QUESTION, max_turns=6)
        assert ended.final_output
        assert "function_call_output" in {item.get("type") for item in ended.to_input_list()}


@check("tools")
def tools() -> None:
    must = ModelSettings(temperature=0, max_tokens=80, tool_choice="required")
    for model in models():
        agent = Agent("a", model=model, model_settings=must, tools=[look_up], tool_use_behavior="stop_on_first_tool")
        assert Runner.run_sync(agent, QUESTION).final_output == ANSWER


@check("structured output")
def structured() -> None:
    for model in models():
        agent = Agent("a", model=model, model_settings=SETTINGS, output_type=City)
        assert Runner.run_sync(agent, QUESTION).final_output.name in {"Paris", "Madrid"}
