"""The events of a response's stream for the OpenAPI document, after OpenAI's reference of the Responses API."""

from typing import Literal

from numaserve.server.surfaces.openai.responses.response_models import (
    BegunResponse,
    FailedResponse,
    Item,
    ModelResponse,
    ResponseText,
    ResponseThoughtText,
)
from numaserve.server.surfaces.response_models import TokenLogprob
from pydantic import BaseModel


class _Event(BaseModel):
    sequence_number: int


class _OfItem(_Event):
    output_index: int
    item_id: str


class _OfPart(_OfItem):
    content_index: int


class ResponseCreatedEvent(_Event):
    """The first event: the response begins."""

    type: Literal["response.created"]
    response: BegunResponse


class ResponseInProgressEvent(_Event):
    """The second event: the response is being generated."""

    type: Literal["response.in_progress"]
    response: BegunResponse


class ResponseOutputItemAddedEvent(_Event):
    """An item begins, without content."""

    type: Literal["response.output_item.added"]
    output_index: int
    item: Item


class ResponseContentPartAddedEvent(_OfPart):
    """A text of an item begins."""

    type: Literal["response.content_part.added"]
    part: ResponseText | ResponseThoughtText


class ResponseReasoningTextDeltaEvent(_OfPart):
    """The next piece of the thinking."""

    type: Literal["response.reasoning_text.delta"]
    delta: str


class ResponseReasoningTextDoneEvent(_OfPart):
    """The whole text of the thinking."""

    type: Literal["response.reasoning_text.done"]
    text: str


class ResponseTextDeltaEvent(_OfPart):
    """The next piece of a message's text, with the log-probabilities of its tokens if they are requested."""

    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[TokenLogprob]


class ResponseTextDoneEvent(_OfPart):
    """The whole text of a message."""

    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[TokenLogprob]


class ResponseContentPartDoneEvent(_OfPart):
    """A text of an item is complete."""

    type: Literal["response.content_part.done"]
    part: ResponseText | ResponseThoughtText


class ResponseFunctionCallArgumentsDeltaEvent(_OfItem):
    """The next piece of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ResponseFunctionCallArgumentsDoneEvent(_OfItem):
    """The arguments of a call are complete."""

    type: Literal["response.function_call_arguments.done"]
    name: str
    arguments: str


class ResponseOutputItemDoneEvent(_Event):
    """An item is complete."""

    type: Literal["response.output_item.done"]
    output_index: int
    item: Item


class ResponseCompletedEvent(_Event):
    """The last event of a complete response."""

    type: Literal["response.completed"]
    response: ModelResponse


class ResponseIncompleteEvent(_Event):
    """The last event of a response that reached the limit on its tokens."""

    type: Literal["response.incomplete"]
    response: ModelResponse


class ResponseFailedEvent(_Event):
    """The last event of a response whose generation failed."""

    type: Literal["response.failed"]
    response: FailedResponse


RESPONSE_EVENTS = (
    ResponseCreatedEvent,
    ResponseInProgressEvent,
    ResponseOutputItemAddedEvent,
    ResponseContentPartAddedEvent,
    ResponseReasoningTextDeltaEvent,
    ResponseReasoningTextDoneEvent,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
    ResponseContentPartDoneEvent,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionCallArgumentsDoneEvent,
    ResponseOutputItemDoneEvent,
    ResponseCompletedEvent,
    ResponseIncompleteEvent,
    ResponseFailedEvent,
)
