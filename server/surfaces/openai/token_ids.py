"""Token ids of a response's text, as vLLM returns them with `return_token_ids`."""

from collections.abc import Sequence


class TokenIds:
    """The ids of each choice that were not sent yet, if they are `wanted`: a chunk without text is not sent at all."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._waiting: dict[int, list[int]] = {}

    def add(self, index: int, tokens: Sequence[int]) -> None:
        """Add the tokens of a chunk of choice `index`."""
        if self._wanted:
            self._waiting.setdefault(index, []).extend(tokens)

    def take(self, index: int) -> dict[str, object]:
        """Return the field for the next chunk of choice `index` that is sent."""
        return {"token_ids": self._waiting.pop(index, [])} if self._wanted else {}

    def of_prompt(self, tokens: Sequence[int]) -> dict[str, object]:
        """Return the field for a prompt."""
        return {"prompt_token_ids": tokens} if self._wanted else {}
