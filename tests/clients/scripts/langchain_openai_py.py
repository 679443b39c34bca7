"""langchain-openai: `ChatOpenAI` and `OpenAI`."""

import openai
from checks import ANSWER, MODEL, QUESTION, URL, check, expect
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAI

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


@check("errors")
def errors() -> None:
    expect(openai.NotFoundError, lambda: chat.invoke(QUESTION, model="other"), "does not exist")
    expect(openai.BadRequestError, lambda: chat.invoke(QUESTION, temperature=3), "temperature")
    # The demo model's template knows no tools.
    expect(openai.BadRequestError, lambda: chat.invoke([*FIRST, CALLED, FOUND]), "tool calls")
