"""Google ADK: an agent over chat completions, by its model for LiteLLM."""

import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it asks the net for prices otherwise

import litellm
from agent_checks import ENDLESS, SAID, SMALL_URL, forced
from checks import MODEL, URL, check, expect
from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.events import Event
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from libraries import LONG, City, leave, read, run

STREAMED = RunConfig(streaming_mode=StreamingMode.SSE)


def agent(url: str = URL, model: str = MODEL, **more: Any) -> InMemoryRunner:
    served = LiteLlm(model=f"hosted_vllm/{model}", api_base=f"{url}/v1")
    return InMemoryRunner(LlmAgent(name="helper", model=served, **more))


def ask(helper: InMemoryRunner, asked: str | list[str] = "Hello", how: RunConfig | None = None) -> list[Event]:
    return run(helper.run_debug(asked, run_config=how, quiet=True))


def text(events: list[Event], *, thought: bool = False) -> str:
    parts = [part for event in events if event.content for part in event.content.parts]
    return "".join(part.text or "" for part in parts if bool(part.thought) == thought).strip()


@check("chat")
def one_answer() -> None:
    (answer,) = ask(agent())
    assert text([answer]) == SAID
    assert answer.usage_metadata.candidates_token_count > 0


@check("chat stream")
def stream() -> None:
    events = ask(agent(), how=STREAMED)
    assert text([event for event in events if event.partial]) == SAID
    assert text([event for event in events if not event.partial]) == SAID


@check("second turn")
def second_turn() -> None:
    for how in (None, STREAMED):
        said = [event for event in ask(agent(), ["Hello", "And now?"], how) if not event.partial]
        assert [text([event]) for event in said] == [SAID, SAID]


@check("tools")
def tools() -> None:
    for how in (None, STREAMED):
        with forced("read"):
            events = [event for event in ask(agent(tools=[read]), "Read the note", how) if not event.partial]
        (result,) = (result for event in events for result in event.get_function_responses())
        assert result.response == {"result": read(SAID)}
        assert text(events[-1:]) == SAID


@check("thoughts")
def thoughts() -> None:
    for how in (None, STREAMED):
        events = [event for event in ask(agent(), ["Please ponder this", "And now?"], how) if not event.partial]
        assert text(events[:1], thought=True) == "hm"
        assert text(events[:1]) == SAID


@check("structured output")
def structured() -> None:
    assert City.model_validate_json(text(ask(agent(output_schema=City), "Name a city"))).motto == SAID


@check("overflow")
def overflow() -> None:
    expect(litellm.ContextWindowExceededError, lambda: ask(agent(SMALL_URL), LONG), "maximum context length")


@check("cancellation")
def cancellation() -> None:
    run(leave(agent().run_debug(ENDLESS, run_config=STREAMED, quiet=True)))


@check("errors")
def errors() -> None:
    expect(litellm.NotFoundError, lambda: ask(agent(model="other")), "does not exist")
