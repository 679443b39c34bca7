"""agno: an agent over chat completions, as of OpenAI's kind and as of vLLM, and over responses."""

import json
from collections.abc import Iterator

from agent_checks import ENDLESS, SAID, SMALL_URL, forced
from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.base import Model
from agno.models.openai import OpenAILike, OpenResponses
from agno.models.vllm import VLLM
from agno.run import RunStatus
from checks import MODEL, URL, check
from libraries import LONG, City, leave, read, run

QUIET = {"telemetry": False}


def models(url: str = URL, name: str = MODEL) -> Iterator[Model]:
    for kind in (OpenAILike, VLLM, OpenResponses):
        yield kind(id=name, base_url=f"{url}/v1", api_key="none")


@check("chat")
def one_answer() -> None:
    for model in models():
        answer = Agent(model=model, **QUIET).run("Hello")
        assert answer.content == SAID
        assert answer.metrics.output_tokens > 0


@check("chat stream")
def stream() -> None:
    for model in models():
        events = list(Agent(model=model, **QUIET).run("Hello", stream=True))
        assert "".join(event.content for event in events if event.event == "RunContent" and event.content) == SAID


@check("second turn")
def second_turn() -> None:
    for model in models():
        agent = Agent(model=model, db=InMemoryDb(), add_history_to_context=True, **QUIET)
        for asked in ("Please ponder this", "And now?"):
            answer = agent.run(asked, session_id="one")
            assert answer.content == SAID
        assert [message.role for message in answer.messages] == ["user", "assistant"] * 2


@check("tools")
def tools() -> None:
    for model in models():
        for streams in (False, True):
            agent = Agent(model=model, tools=[read], db=InMemoryDb(), **QUIET)
            with forced("read"):
                answer = agent.run("Read the note", session_id="one", stream=streams)
                if streams:
                    list(answer)
            answer = agent.get_last_run_output("one")
            (call,) = answer.tools
            assert (call.tool_args, call.result) == ({"name": SAID}, read(SAID))
            assert answer.content == SAID


@check("thoughts")
def thoughts() -> None:
    for model in models():
        answer = Agent(model=model, **QUIET).run("Please ponder this")
        assert answer.content == SAID
        summaries_only = isinstance(model, OpenResponses)  # and a model writes none
        assert answer.reasoning_content == (None if summaries_only else "hm")


@check("structured output")
def structured() -> None:
    for model in models():
        assert Agent(model=model, output_schema=City, **QUIET).run("Name a city").content.motto == SAID
        agent = Agent(model=model, output_schema=City, use_json_mode=True, parse_response=False, **QUIET)
        assert isinstance(json.loads(agent.run("Name a city").content), dict)


def refusal(model: Model, asked: str) -> str:
    answer = Agent(model=model, **QUIET).run(asked)
    assert answer.status == RunStatus.error
    return answer.content


@check("overflow")
def overflow() -> None:
    for model in models(SMALL_URL):
        assert "maximum context length" in refusal(model, LONG)


@check("cancellation")
def cancellation() -> None:
    async def said(model: Model) -> None:
        async for _ in Agent(model=model, **QUIET).arun(ENDLESS, stream=True):
            pass

    for model in models():
        run(leave(said(model)))


@check("errors")
def errors() -> None:
    for model in models(name="other"):
        assert "does not exist" in refusal(model, "Hello")
