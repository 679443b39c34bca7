"""langchain-openai: `ChatOpenAI` and `OpenAI`."""

from typing import Literal

import openai
from checks import ANSWER, LOOK_UP, MODEL, QUESTION, URL, check, expect
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel

SERVER = {"base_url": f"{URL}/v1", "api_key": "none", "temperature": 0, "max_retries": 0}
chat = ChatOpenAI(model=MODEL, max_completion_tokens=12, **SERVER)
llm = OpenAI(model=MODEL, max_tokens=4, **SERVER)
FIRST = [SystemMessage("Answer in a few words."), HumanMessage(QUESTION)]
FOLLOW_UP = HumanMessage("And of Spain?")
CALLED = AIMessage("", tool_calls=[{"id": "call_1", "name": "look_up", "args": {"place": "France"}}])
FOUND = ToolMessage("Paris", tool_call_id="call_1")
PROMPT = "The capital of France is"


@check("chat")
def one_answer() -> None:
    assert ANSWER in chat.invoke(QUESTION).content
    assert len(chat.batch([QUESTION, "Hello"])) == 2


@check("chat stream")
def stream() -> None:
    for streamed in (chat.stream(QUESTION), chat.stream(QUESTION, stream_usage=True)):
        assert ANSWER in "".join(chunk.text for chunk in streamed)


@check("second turn")
def second_turn() -> None:
    chunks = list(chat.stream(FIRST))
    streamed = sum(chunks[1:], chunks[0])
    for answer in (chat.invoke(FIRST), streamed):
        assert chat.invoke([*FIRST, answer, FOLLOW_UP]).content


@check("completion")
def completion() -> None:
    assert ANSWER in llm.invoke(PROMPT)


@check("completion stream")
def completion_stream() -> None:
    assert ANSWER in "".join(llm.stream(PROMPT))


@check("log-probabilities")
def log_probabilities() -> None:
    answer = chat.bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    assert answer.response_metadata["logprobs"]["content"]


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Madrid"]
    on_the_coast: bool


TOOL = {"type": "function", "function": LOOK_UP}
longer = ChatOpenAI(model=MODEL, max_completion_tokens=80, **SERVER)


@check("tools")
def tools() -> None:
    answer = longer.bind_tools([TOOL], tool_choice="required").invoke(QUESTION)
    assert answer.tool_calls[0]["args"]["place"] in {"France", "Spain"}
    found = ToolMessage("Paris", tool_call_id=answer.tool_calls[0]["id"])
    assert chat.bind_tools([TOOL], tool_choice="none").invoke([HumanMessage(QUESTION), answer, found]).content
    assert chat.invoke([*FIRST, CALLED, FOUND]).content


@check("tools stream")
def tools_stream() -> None:
    chunks = list(longer.bind_tools([TOOL], tool_choice="look_up").stream(QUESTION))
    assert sum(chunks[1:], chunks[0]).tool_calls[0]["args"]["place"] in {"France", "Spain"}


@check("structured output")
def structured() -> None:
    for method in ("json_schema", "function_calling"):
        assert longer.with_structured_output(City, method=method).invoke(QUESTION).name in {"Paris", "Madrid"}
    # Nothing bounds an object that a small model writes, but for a stop string, behind which it is half of one.
    halved = ChatOpenAI(model=MODEL, max_completion_tokens=80, stop_sequences=[":"], **SERVER)
    asked = halved.with_structured_output(City, method="json_mode", include_raw=True)
    assert asked.invoke("Answer with a JSON object.")["raw"].content.startswith("{")


@check("errors")
def errors() -> None:
    expect(openai.NotFoundError, lambda: chat.invoke(QUESTION, model="other"), "does not exist")
    expect(openai.BadRequestError, lambda: chat.invoke(QUESTION, temperature=3), "temperature")
