"""The bounds of a body: as much as the longest context could need, and no more."""

from __future__ import annotations

from dataclasses import dataclass

from numaserve.server.http.limits import ApiLimits

# English has some 4 bytes a token; JSON may write a character in 12, and runs of spaces or dashes make long tokens.
_BYTES_PER_TOKEN = 64
_BYTES_BESIDE = 1 << 20  # for everything that is no prompt
# A character that separates values in JSON may as well be text: minified JSON as a prompt has one or two a token.
_VALUES_PER_TOKEN = 4
_VALUES_BESIDE = 1 << 16
_MAX_VALUES = 1 << 20  # of all prompts of a body; some 30 ms to turn into Python objects, piece by piece
_SEPARATORS = (b",", b":", b"[", b"{")
_SLICE = 1 << 20
# Objects and lists: more than the longest conversations have. The garbage collector looks at each again and again while
# they are made, in which no stream goes on: some 30 ms for so many, and half a second for eight times as many.
MAX_CONTAINERS = 1 << 16


@dataclass(frozen=True)
class BodyNeed:
    """The most that one body may hold: bytes, and characters that separate values, inside of texts too."""

    max_bytes: int
    max_values: int

    @classmethod
    def of(cls, tokens: int, limits: ApiLimits) -> BodyNeed:
        """The need of texts or prompts of so many tokens, within what `limits` allows any body."""
        return cls(
            min(limits.max_body_bytes, _BYTES_BESIDE + _BYTES_PER_TOKEN * tokens),
            min(max(_MAX_VALUES, 2 * limits.context_length), _VALUES_BESIDE + _VALUES_PER_TOKEN * tokens),
        )


def count_values(body: bytes, limit: int) -> int:
    """The number of values that `body` may hold, counted until it is more than `limit`.

    Slice by slice: where every byte is a separator, counting them all would take a third of a second for 32 MiB.
    """
    count = 0
    for start in range(0, len(body), _SLICE):
        count += sum(body.count(separator, start, start + _SLICE) for separator in _SEPARATORS)
        if count > limit:
            break
    return count
