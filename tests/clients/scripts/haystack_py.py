"""Haystack: its generators and agents, over chat and over responses."""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

import openai
from agent_checks import ENDLESS, SAID, SMALL_URL, forced
from checks import MODEL, URL, check, expect
from haystack import Pipeline
from haystack.components.agents import Agent
from haystack.components.builders import ChatPromptBuilder
from haystack.components.generators.chat import OpenAIChatGenerator, OpenAIResponsesChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import tool
from haystack.utils import Secret
from libraries import LONG, leave, run
from pydantic import BaseModel

FIRST = [ChatMessage.from_system("Be brief."), ChatMessage.from_user("Hello")]
FOLLOW_UP = ChatMessage.from_user("And now?")
PONDER = [ChatMessage.from_user("Please ponder this")]
KINDS = (OpenAIChatGenerator, OpenAIResponsesChatGenerator)
STREAMED = {"streaming_callback": lambda _: None}


def generator(kind: type, url: str = URL, **more: Any) -> Any:
    return kind(**{"api_key": Secret.from_token("none"), "model": MODEL, "api_base_url": f"{url}/v1"} | more)


def generators(**more: Any) -> Iterator[Any]:
    """Make one of each kind."""
    return (generator(kind, **more) for kind in KINDS)


class Place(BaseModel):
    """A place."""

    name: str


@tool
def look_up(place: str) -> str:
    """Finds the capital of a country."""
    return f"found {place}"


@check("chat")
def one_answer() -> None:
    for made in generators():
        (reply,) = made.run(FIRST)["replies"]
        assert (reply.text, reply.meta["finish_reason"]) == (SAID, "stop")
        assert reply.meta["usage"]["total_tokens"] > 0
        pipeline = Pipeline()
        pipeline.add_component("prompt", ChatPromptBuilder(template=[ChatMessage.from_user("Hello {{name}}")]))
        pipeline.add_component("llm", made)
        pipeline.connect("prompt.prompt", "llm.messages")
        assert pipeline.run({"prompt": {"name": "you"}})["llm"]["replies"][0].text == SAID


@check("chat stream")
def stream() -> None:
    for made in generators():
        chunks: list[Any] = []
        (reply,) = made.run(FIRST, streaming_callback=chunks.append)["replies"]
        assert reply.text == "".join(chunk.content for chunk in chunks) == SAID


@check("second turn")
def second_turn() -> None:
    for made in generators():
        for messages in (FIRST, PONDER):
            for how in ({}, STREAMED):
                (reply,) = made.run(messages, **how)["replies"]
                assert made.run([*messages, reply, FOLLOW_UP])["replies"][0].text == SAID


@check("tools")
def tools() -> None:
    for made in generators():
        for how in ({}, STREAMED):
            with forced("look_up"):
                ended = Agent(chat_generator=made, tools=[look_up]).run(messages=FIRST, **how)
            *_, found, last = ended["messages"]
            assert found.tool_call_result.result == f"found {SAID}"
            assert last.text == SAID


@check("thoughts")
def thoughts() -> None:
    made = generator(OpenAIResponsesChatGenerator)  # the other one knows none
    for how in ({}, STREAMED):
        (reply,) = made.run(PONDER, **how)["replies"]
        assert (reply.reasoning.reasoning_text, reply.text) == ("hm", SAID)


@check("structured output")
def structured() -> None:
    for kind, field in zip(KINDS, ("response_format", "text_format"), strict=True):
        (reply,) = generator(kind, generation_kwargs={field: Place}).run(FIRST)["replies"]
        assert Place.model_validate_json(reply.text).name == SAID


@check("overflow")
def overflow() -> None:
    for made in generators(url=SMALL_URL):
        for how in ({}, STREAMED):
            request = partial(made.run, [ChatMessage.from_user(LONG)], **how)
            expect(openai.BadRequestError, request, "maximum context length is 512 tokens")


@check("cancellation")
def cancellation() -> None:
    for made in generators():
        run(leave(made.run_async([ChatMessage.from_user(ENDLESS)], **STREAMED)))


@check("errors")
def errors() -> None:
    for made in generators(model="other"):
        expect(openai.NotFoundError, partial(made.run, FIRST), "does not exist")
    for made in generators(generation_kwargs={"temperature": 3}):
        expect(openai.BadRequestError, partial(made.run, FIRST), "temperature")
