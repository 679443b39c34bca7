"""Strands: an agent over chat completions, by its provider for OpenAI."""

import openai
from agent_checks import ENDLESS, SAID, SMALL_URL, forced
from checks import MODEL, URL, check, expect
from libraries import LONG, City, leave, read, run
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.types.exceptions import ContextWindowOverflowException


def agent(url: str = URL, model: str = MODEL, **more: bool) -> Agent:
    server = {"base_url": f"{url}/v1", "api_key": "none"}
    provider = OpenAIModel(client_args=server, model_id=model, **more)
    return Agent(model=provider, tools=[tool(read)], callback_handler=None)


@check("chat")
def one_answer() -> None:
    answer = agent(stream=False)("Hello")
    assert str(answer).strip() == SAID
    assert answer.metrics.accumulated_usage["outputTokens"] > 0


async def said(asked: str) -> str:
    return "".join([event.get("data", "") async for event in agent().stream_async(asked)])


@check("chat stream")
def stream() -> None:
    assert run(said("Hello")) == SAID


@check("second turn")
def second_turn() -> None:
    helper = agent()
    for asked in ("Hello", "And now?"):
        assert str(helper(asked)).strip() == SAID
    assert len(helper.messages) == 4


@check("tools")
def tools() -> None:
    for streams in (True, False):
        helper = agent(stream=streams)
        with forced("read"):
            assert str(helper("Read the note")).strip() == SAID
        blocks = [block for message in helper.messages for block in message["content"]]
        (result,) = [block["toolResult"] for block in blocks if "toolResult" in block]
        assert result["status"] == "success"


@check("thoughts")
def thoughts() -> None:
    for streams in (True, False):
        helper = agent(stream=streams)
        thought, answer = helper("Please ponder this").message["content"]
        assert thought["reasoningContent"]["reasoningText"]["text"].strip() == "hm"
        assert answer["text"].strip() == SAID
        assert str(helper("And now?")).strip().endswith(SAID)


@check("structured output")
def structured() -> None:
    assert agent()("Name a city", structured_output_model=City).structured_output.motto == SAID


@check("overflow")
def overflow() -> None:
    expect(ContextWindowOverflowException, lambda: agent(SMALL_URL)(LONG))


@check("cancellation")
def cancellation() -> None:
    run(leave(said(ENDLESS)))


@check("errors")
def errors() -> None:
    expect(openai.NotFoundError, lambda: agent(model="other")("Hello"), "does not exist")
