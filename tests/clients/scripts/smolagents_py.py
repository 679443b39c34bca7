"""smolagents: its model for servers of OpenAI's kind, and agents that call tools and that write code."""

import gc
import json
import sys
from collections.abc import Iterable
from contextlib import closing, redirect_stdout
from typing import Any

import openai
from agent_checks import ENDLESS, SAID, SMALL_URL, forced, running, until
from checks import MODEL, URL, check, expect, user
from libraries import City, read
from smolagents import (
    CodeAgent,
    FinalAnswerStep,
    LogLevel,
    MultiStepAgent,
    OpenAIModel,
    ToolCallingAgent,
    ToolOutput,
    tool,
)
from smolagents.utils import AgentGenerationError


def model(url: str = URL, name: str = MODEL) -> OpenAIModel:
    return OpenAIModel(name, api_base=f"{url}/v1", api_key="none")


def agent(kind: type[MultiStepAgent], url: str = URL, **more: Any) -> MultiStepAgent:
    tools = [tool(read)] if kind is ToolCallingAgent else []
    return kind(tools=tools, model=model(url), verbosity_level=LogLevel.OFF, max_steps=1, **more)


@check("chat")
def one_answer() -> None:
    answer = model().generate([user("Hello")])
    assert answer.content == SAID
    assert answer.token_usage.output_tokens > 0
    assert agent(CodeAgent).run("Hello") == SAID  # no code, and then what it answers without any


@check("chat stream")
def stream() -> None:
    assert "".join(part.content or "" for part in model().generate_stream([user("Hello")])) == SAID
    with redirect_stdout(sys.stderr):  # to which it shows the answer as it comes
        assert agent(CodeAgent, stream_outputs=True).run("Hello") == SAID


@check("second turn")
def second_turn() -> None:
    helper = agent(CodeAgent)
    assert helper.run("Hello") == SAID
    assert helper.run("And now?", reset=False) == SAID


def output(steps: Iterable[object]) -> object:
    """Return the output of the next tool that is called."""
    return next(step.output for step in steps if isinstance(step, ToolOutput))


@check("tools")
def tools() -> None:
    # It sends results as texts of the user, which end no demand of a call.
    for streams in (False, True):
        helper = agent(ToolCallingAgent, stream_outputs=streams)
        steps = helper.run("Read the note", stream=True, max_steps=2)
        with redirect_stdout(sys.stderr):
            with forced("read"):
                assert output(steps) == read(SAID)
            with forced("final_answer"):
                assert [step.output for step in steps if isinstance(step, FinalAnswerStep)] == [SAID]


@check("thoughts")
def thoughts() -> None:
    answer = model().generate([user("Please ponder this")])
    assert answer.content == SAID
    assert answer.raw.choices[0].message.reasoning_content == "hm"


@check("structured output")
def structured() -> None:
    schema = {"name": "city", "schema": City.model_json_schema()}
    asked = {"type": "json_schema", "json_schema": schema}
    answer = model().generate([user("Name a city")], response_format=asked)
    assert City.model_validate_json(answer.content).motto == SAID
    coder = agent(CodeAgent, use_structured_outputs_internally=True)
    coder.run("Hello", additional_args={SAID: 1})
    written = json.loads(coder.memory.steps[1].model_output)
    assert (written["code"], written["thought"]) == (SAID, SAID)


@check("overflow")
def overflow() -> None:
    for kind in (CodeAgent, ToolCallingAgent):
        expect(AgentGenerationError, lambda of=kind: agent(of, SMALL_URL).run("Hello"), "maximum context length")


@check("cancellation")
def cancellation() -> None:
    with closing(model().generate_stream([user(ENDLESS)])) as parts:
        next(parts)
        assert running() > 0
    gc.collect()  # closes the connection: a stream of `openai` that is left refers to itself
    until(lambda: running() == 0, "the request goes on")


@check("errors")
def errors() -> None:
    expect(openai.NotFoundError, lambda: model(name="other").generate([user("Hello")]), "does not exist")
