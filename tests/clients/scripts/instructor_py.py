"""`instructor`: pydantic models out of answers, in three ways."""

from typing import Literal

import instructor
import openai
from checks import MODEL, URL, check, expect, user
from pydantic import BaseModel

plain = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)
ASKED = {"model": MODEL, "messages": [user()], "max_tokens": 80, "temperature": 0, "max_retries": 0}


class City(BaseModel):
    """A city."""

    name: Literal["Paris", "Madrid"]
    on_the_coast: bool


@check("tools")
def tools() -> None:
    client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
    assert client.chat.completions.create(response_model=City, **ASKED).name in {"Paris", "Madrid"}


@check("tools stream")
def tools_stream() -> None:
    client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
    *_, last = client.chat.completions.create_partial(response_model=City, **ASKED)
    assert last.name in {"Paris", "Madrid"}


@check("structured output")
def structured() -> None:
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    assert client.chat.completions.create(response_model=City, **ASKED).name in {"Paris", "Madrid"}
    # Any object is JSON: a small model need not write the one that is asked for.
    client = instructor.from_openai(plain, mode=instructor.Mode.JSON)
    try:
        client.chat.completions.create(response_model=City, **ASKED)
    except Exception as error:
        assert type(error).__name__ in {"InstructorRetryException", "IncompleteOutputException"}, error


@check("errors")
def errors() -> None:
    client = instructor.from_openai(plain, mode=instructor.Mode.TOOLS)
    wrong = ASKED | {"model": "other"}
    expect(Exception, lambda: client.chat.completions.create(response_model=City, **wrong), "does not exist")
