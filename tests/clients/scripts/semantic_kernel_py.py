"""Semantic Kernel: an agent over chat completions."""

from collections.abc import AsyncIterable
from typing import Any

import openai
from agent_checks import ENDLESS, SAID, SMALL_URL, forced
from checks import MODEL, URL, check, expect
from libraries import LONG, City, leave, read, run
from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai import FunctionChoiceBehavior
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion, OpenAIChatPromptExecutionSettings
from semantic_kernel.contents import FunctionCallContent, FunctionResultContent
from semantic_kernel.exceptions import ServiceResponseException
from semantic_kernel.functions import KernelArguments, KernelPlugin, kernel_function

PLUGIN = KernelPlugin("notes", functions=[kernel_function(read)])


def agent(url: str = URL, model: str = MODEL, **more: Any) -> ChatCompletionAgent:
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    service = OpenAIChatCompletion(ai_model_id=model, async_client=client)
    return ChatCompletionAgent(service=service, name="helper", instructions="Be helpful.", plugins=[PLUGIN], **more)


async def said(answers: AsyncIterable[Any]) -> str:
    return "".join([part.content.content async for part in answers])


@check("chat")
def one_answer() -> None:
    answer = run(agent().get_response("Hello"))
    assert answer.content.content == SAID
    assert answer.metadata["usage"].completion_tokens > 0


@check("chat stream")
def stream() -> None:
    assert run(said(agent().invoke_stream("Hello"))) == SAID


@check("second turn")
def second_turn() -> None:
    helper = agent()
    first = run(helper.get_response("Hello"))
    second = run(helper.get_response("And now?", thread=first.thread))
    assert second.content.content == SAID
    assert len(second.thread) == 4


@check("tools")
def tools() -> None:
    told = []

    async def keep(message: Any) -> None:
        told.extend(type(item) for item in message.items)

    with forced("notes-read"):
        for invoke in (agent().invoke, agent().invoke_stream):
            told.clear()
            assert run(said(invoke("Read the note", on_intermediate_message=keep))) == SAID
            assert {FunctionCallContent, FunctionResultContent} <= set(told)


@check("tools")
def required_tools() -> None:
    called = agent(function_choice_behavior=FunctionChoiceBehavior.Required(auto_invoke=False))
    call, *_ = run(called.get_response("Read the note")).items
    assert (call.name, call.arguments) == ("notes-read", '{"name":"ok"}')


@check("thoughts")
def thoughts() -> None:
    answer = run(agent().get_response("Please ponder this"))
    assert answer.content.content == SAID
    assert answer.content.inner_content.choices[0].message.reasoning_content == "hm"


@check("structured output")
def structured() -> None:
    settings = KernelArguments(OpenAIChatPromptExecutionSettings(response_format=City))
    answer = run(agent().get_response("Name a city", arguments=settings))
    assert City.model_validate_json(answer.content.content).motto == SAID


@check("overflow")
def overflow() -> None:
    expect(ServiceResponseException, lambda: run(agent(SMALL_URL).get_response(LONG)), "maximum context length")


@check("cancellation")
def cancellation() -> None:
    # It closes no connection when a stream is closed, but when the task that reads it is cancelled.
    run(leave(said(agent().invoke_stream(ENDLESS))))


@check("errors")
def errors() -> None:
    expect(ServiceResponseException, lambda: run(agent(model="other").get_response("Hello")), "404", "does not exist")
