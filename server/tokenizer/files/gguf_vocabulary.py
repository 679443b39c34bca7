"""The vocabulary in a GGUF file's metadata, and what is built of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

import tokenizers
from gguf.constants import Keys, TokenType
from numaserve.server.tokenizer.files.gguf_metadata import Value, read_metadata
from numaserve.server.tokenizer.types import TokenizerError
from tokenizers import processors

_T = TypeVar("_T")


@dataclass(frozen=True)
class Built:
    """A tokenizer, and the ids of the tokens that it puts around a text; None: no token.

    Between the two texts of a pair it puts the last token, `separators` times. With `typed` the tokens of the second
    text are of type 1.
    """

    backend: tokenizers.Tokenizer
    first: int | None
    last: int | None
    separators: int = 1
    typed: bool = False

    def surround(self) -> None:
        """Make the tokenizer put these tokens around a text, and around the texts of a pair."""
        first, last = (
            [] if token_id is None else [(str(self.backend.id_to_token(token_id)), token_id)]
            for token_id in (self.first, self.last)
        )
        if around := [*first, *last]:
            single = [*(text for text, _ in first), "$A", *(text for text, _ in last)]
            second = [f"{each}:{int(self.typed)}" for each in ("$B", *(text for text, _ in last))]
            pair = [*single, *(text for text, _ in last * (self.separators - 1)), *second]
            self.backend.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=around)


class Metadata:
    """Typed look-ups; a key of a wrong type is a `TokenizerError`."""

    def __init__(self, path: Path) -> None:
        """Read the file at `path`. Raises `TokenizerError` for a file without a vocabulary."""
        self._values = read_metadata(path)
        self._path = path
        self.architecture = self.scalar(Keys.General.ARCHITECTURE, str) or ""
        self.tokens = self.array(Keys.Tokenizer.LIST, str)
        self.types = self.array(Keys.Tokenizer.TOKEN_TYPE, int) or [int(TokenType.NORMAL)] * len(self.tokens)
        if not self.tokens or len(self.types) != len(self.tokens):
            raise self.error("the vocabulary is missing or incomplete")

    def scalar(self, key: str, kind: type[_T]) -> _T | None:
        """Return a value; None if it is missing."""
        value: Value | None = self._values.get(key)
        if value is not None and not isinstance(value, kind):
            raise self.error(f"the value of {key} must be of type {kind.__name__}")
        return value

    def array(self, key: str, kind: type[_T]) -> list[_T]:
        """Return an array; an empty one if it is missing."""
        values = self._values.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
            raise self.error(f"the value of {key} must be an array of type {kind.__name__}")
        return cast(list[_T], values)

    def token_id(self, key: str) -> int | None:
        """Return an id of the vocabulary; None if it is missing."""
        value = self.scalar(key, int)
        if value is not None and not 0 <= value < len(self.tokens):
            raise self.error(f"{key} is {value}, outside the vocabulary of {len(self.tokens)} tokens")
        return value

    def first(self, *, default: bool) -> int | None:
        """Return the token before a text; None if the file, or by `default` its kind of tokenizer, adds none."""
        return self._added(Keys.Tokenizer.BOS_ID, Keys.Tokenizer.ADD_BOS, default)

    def last(self, *, default: bool) -> int | None:
        """Return the token after a text, as `first` does."""
        return self._added(Keys.Tokenizer.EOS_ID, Keys.Tokenizer.ADD_EOS, default)

    def _added(self, key: str, flag: str, default: bool) -> int | None:
        stated = self.scalar(flag, bool)
        return self.token_id(key) if (default if stated is None else stated) else None

    def chat_template(self) -> str | None:
        """Return the file's chat template; None if it has none."""
        return self.scalar(Keys.Tokenizer.CHAT_TEMPLATE, str)

    def of_type(self, kind: int) -> list[int]:
        """Return the ids of this type."""
        return [token_id for token_id, value in enumerate(self.types) if value == kind]

    def error(self, what: str) -> TokenizerError:
        """Return an error about the file, for raising."""
        return TokenizerError(f"the tokenizer in {self._path} cannot be used: {what}; use another copy of the model")
