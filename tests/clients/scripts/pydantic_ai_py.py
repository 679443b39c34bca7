"""`pydantic-ai`: an agent over chat, with outputs of three kinds."""

from typing import Literal

from checks import MODEL, QUESTION, URL, check
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=f"{URL}/v1", api_key="none"))
SETTINGS = {"temperature": 0.0, "max_tokens": 80}


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Madrid"]
    on_the_coast: bool


@check("chat")
def one_answer() -> None:
    assert Agent(model).run_sync(QUESTION, model_settings=SETTINGS).output


@check("tools")
def tools() -> None:
    agent = Agent(model, output_type=ToolOutput(City))
    assert agent.run_sync(QUESTION, model_settings=SETTINGS).output.name in {"Paris", "Madrid"}


@check("structured output")
def structured() -> None:
    agent = Agent(model, output_type=NativeOutput(City))
    assert agent.run_sync(QUESTION, model_settings=SETTINGS).output.name in {"Paris", "Madrid"}
