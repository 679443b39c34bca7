"""`llama-index` with `OpenAILike`: chat, tools and structured answers."""

from typing import Literal

from checks import ANSWER, MODEL, QUESTION, URL, check
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

llm = OpenAILike(
    model=MODEL,
    api_base=f"{URL}/v1",
    api_key="none",
    is_chat_model=True,
    is_function_calling_model=True,
    temperature=0,
    max_tokens=80,
    max_retries=0,
)
FIRST = [ChatMessage(role="user", content=QUESTION)]


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Madrid"]
    on_the_coast: bool


def look_up(place: Literal["France", "Spain"]) -> str:
    """Finds the capital of a country."""
    return ANSWER


@check("chat")
def one_answer() -> None:
    assert ANSWER in llm.chat(FIRST).message.content


@check("chat stream")
def stream() -> None:
    assert ANSWER in "".join(part.delta for part in llm.stream_chat(FIRST))


@check("tools")
def tools() -> None:
    tool = FunctionTool.from_defaults(look_up)
    answer = llm.chat_with_tools([tool], chat_history=FIRST, tool_required=True)
    (call,) = llm.get_tool_calls_from_response(answer)[:1]
    assert call.tool_kwargs["place"] in {"France", "Spain"}


@check("structured output")
def structured() -> None:
    city = llm.structured_predict(City, PromptTemplate(QUESTION))
    assert city.name in {"Paris", "Madrid"}
