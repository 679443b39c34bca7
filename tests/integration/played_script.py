"""What a fake worker plays: answers of a model, whatever masks say."""

import json
from collections.abc import Sequence
from pathlib import Path


class Script:
    """A file that `Script.file` has written."""

    def __init__(self, path: Path) -> None:
        script = json.loads(path.read_text())
        self._turn: int = script["turn"]
        self._replies: list[list[int]] = script["replies"]

    @staticmethod
    def file(turn: int, replies: list[list[int]]) -> str:
        """The text of a file: the token that begins a turn of the model, and the tokens of each turn."""
        return json.dumps({"turn": turn, "replies": replies})

    def next_token(self, context: Sequence[int]) -> int:
        """The token after `context`."""
        reply = self._replies[context.count(self._turn) - 1]
        written = context[::-1].index(self._turn)
        return reply[min(written, len(reply) - 1)]  # a token more may be asked for, and thrown away
