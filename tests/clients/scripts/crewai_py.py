"""crewAI: a crew and its model, as of OpenAI's kind and as a hosted vLLM."""

import os
from collections.abc import Iterator
from typing import Any

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}
os.environ["CREWAI_DISABLE_VERSION_CHECK"] = "true"

from agent_checks import ENDLESS, SAID, SMALL_URL, forced
from checks import MODEL, URL, check, expect, user
from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from crewai.utilities.exceptions.context_window_exceeding_exception import LLMContextLengthExceededError
from libraries import LONG, City, leave, read, run


def models(url: str = URL, name: str = MODEL, **more: Any) -> Iterator[LLM]:
    for provider in ("openai", "hosted_vllm"):
        yield LLM(model=f"{provider}/{name}", base_url=f"{url}/v1", api_key="none", **more)


def agent(llm: LLM, **more: Any) -> Agent:
    return Agent(role="helper", goal="help", backstory="You are helpful.", llm=llm, **more)


def crew(llm: LLM, *asked: str, **more: Any) -> Crew:
    helper = agent(llm)
    tasks = [Task(description=each, expected_output="a word", agent=helper) for each in asked]
    return Crew(agents=[helper], tasks=tasks, **more)


@check("chat")
def one_answer() -> None:
    for llm in models():
        assert llm.call("Hello") == SAID
        assert crew(llm, "Say hello").kickoff().raw == SAID


@check("chat stream")
def stream() -> None:
    for llm in models(stream=True):
        assert llm.call("Hello") == SAID
        streamed = crew(llm, "Say hello", stream=True).kickoff()
        assert "".join(part.content for part in streamed) == SAID
        assert streamed.result.raw == SAID


@check("second turn")
def second_turn() -> None:
    for llm in models():
        assert llm.call([user(), {"role": "assistant", "content": SAID}, user("And now?")]) == SAID
        assert [done.raw for done in crew(llm, "Say hello", "And now?").kickoff().tasks_output] == [SAID, SAID]


@check("tools")
def tools() -> None:
    for streams in (False, True):
        for llm in models(stream=streams):
            with forced("read"):
                answer = agent(llm, tools=[tool("read")(read)]).kickoff("Read the note")
            assert answer.raw == SAID
            assert [message["role"] for message in answer.messages[2:]] == ["assistant", "tool", "assistant"]


@check("thoughts")
def thoughts() -> None:
    for llm in models():
        assert llm.call("Please ponder this") == SAID  # and it drops the thoughts


@check("structured output")
def structured() -> None:
    for llm in models():
        assert llm.call("Name a city", response_model=City).motto == SAID
        assert agent(llm).kickoff("Name a city", response_format=City).pydantic.motto == SAID
    for llm in models(response_format=City):
        assert llm.call("Name a city").motto == SAID


@check("overflow")
def overflow() -> None:
    for llm in models(SMALL_URL):
        for ask in (llm.call, agent(llm).kickoff):
            expect(LLMContextLengthExceededError, lambda of=ask: of(LONG), "maximum context length")


@check("cancellation")
def cancellation() -> None:
    for llm in models(stream=True):
        run(leave(llm.acall(ENDLESS)))


@check("errors")
def errors() -> None:
    for llm in models(name="other"):
        expect(ValueError, lambda of=llm: of.call("Hello"), "does not exist")
