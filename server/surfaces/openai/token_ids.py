"""Token ids of a response's text, as vLLM returns them with `return_token_ids`."""

from collections.abc import Sequence


class TokenIds:
    """The ids of choices that were not sent yet, where they are `wanted`: a chunk without text is not sent at all."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._waiting: dict[int, list[int]] = {}

    def add(self, index: int, tokens: Sequence[int]) -> None:
        """Take the tokens of a chunk of choice `index`."""
        if self._wanted:
            self._waiting.setdefault(index, []).extend(tokens)

    def take(self, index: int) -> dict[str, object]:
        """The field of what is sent now of choice `index`."""
        return {"token_ids": self._waiting.pop(index, [])} if self._wanted else {}

    def of_prompt(self, tokens: Sequence[int]) -> dict[str, object]:
        """The field of a prompt."""
        return {"prompt_token_ids": tokens} if self._wanted else {}
