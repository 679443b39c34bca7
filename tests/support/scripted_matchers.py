"""Constraints whose every answer a test decides."""

import ctypes
import threading
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from numaserve.server.scheduler.matcher import MaskState

Allowed = Callable[[list[int]], set[int]]  # the tokens that may follow an output


def some_tokens(vocab: int, first: int = 0, share: int = 9) -> Allowed:
    """About one token in `share`, other ones after each other output."""

    def allowed(output: list[int]) -> set[int]:
        key = zlib.crc32(repr(output).encode())
        return {token for token in range(first, vocab) if (token * 2654435761 ^ key) % share == 0}

    return allowed


@dataclass
class ScriptedMatcher:
    """Allows what `allowed` says, for each output; at `step` it does `instead`."""

    allowed: Allowed
    step: int = -1
    instead: Callable[[], MaskState] | None = None
    output: list[int] = field(default_factory=list)
    users: list[str] = field(default_factory=list)  # threads

    is_confined = False

    def confine(self) -> None:
        """It stays."""

    def fork(self) -> "ScriptedMatcher":
        return ScriptedMatcher(self.allowed, self.step, self.instead, self.output.copy(), self.users)

    def forced(self) -> list[int]:
        return []

    def would_accept(self, tokens: Sequence[int]) -> int:
        allowed = (token in self.allowed([*self.output, *tokens[:index]]) for index, token in enumerate(tokens))
        return len(list(takewhile(bool, allowed)))

    def accept(self, token: int) -> None:
        assert token in self.allowed(self.output)
        self.output.append(token)

    def write_mask(self, address: int, nbytes: int) -> MaskState:
        self.users.append(threading.current_thread().name)
        if len(self.output) == self.step and self.instead is not None:
            return self.instead()
        bits = sum(1 << token for token in self.allowed(self.output))
        ctypes.memmove(address, bits.to_bytes(nbytes, "little"), nbytes)
        return MaskState.MASK
