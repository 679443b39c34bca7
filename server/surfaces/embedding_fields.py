"""Fields of requests for embeddings that several surfaces have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from numaserve.server.http.errors import bad_request
from numaserve.server.http.fields.types import MAX_INT, Strict
from numaserve.server.http.limits import ApiLimits
from pydantic import Field

MAX_INPUTS = 8192
Dimensions = Annotated[int, Field(ge=1, le=MAX_INT)]


class ManyInputs(Strict):
    """A body with many inputs."""

    @classmethod
    def most_tokens(cls, limits: ApiLimits) -> int:
        """Return the tokens of many inputs, few of which have the maximum length."""
        return 16 * limits.context_length


def check_not_empty(inputs: Sequence[str] | Sequence[list[int]], param: str) -> None:
    """Raise `ApiError` for an empty text."""
    for index, each in enumerate(inputs):
        if not each:
            raise bad_request(f"'{param}[{index}]' is empty. Send a text.", f"{param}[{index}]", "empty_prompt")
