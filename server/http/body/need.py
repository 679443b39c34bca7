"""The bounds of a body: the size that the longest context could need."""

from __future__ import annotations

from dataclasses import dataclass

from numaserve.server.http.limits import ApiLimits

# English has about 4 bytes per token; JSON may take 12 for a character, and runs of spaces or dashes are long tokens.
BYTES_PER_TOKEN = 64
_BYTES_BESIDE = 1 << 20  # for everything except prompts
# A separator of JSON values may also be text: minified JSON as a prompt has one or two per token.
_VALUES_PER_TOKEN = 4
_VALUES_BESIDE = 1 << 16
_MAX_VALUES = 1 << 20  # in all prompts of a body; about 30 ms to convert to Python objects, piece by piece
_SEPARATORS = (b",", b":", b"[", b"{")
_SLICE = 1 << 20
# The number of objects and lists: more than the longest conversations have. The garbage collector scans them repeatedly
# while they are created, and every stream stops meanwhile: about 30 ms for this number, half a second for eight times
# it.
MAX_CONTAINERS = 1 << 16


@dataclass(frozen=True)
class BodyNeed:
    """The maximum size of one body: bytes, JSON separators, including those inside strings, and bytes without images.

    Images may take all that the texts leave of any body's bytes: for the usual 32 MiB, a file of up to 23 MiB.
    """

    max_bytes: int
    max_values: int
    max_text_bytes: int

    @classmethod
    def of(cls, tokens: int, limits: ApiLimits, *, takes_images: bool = False) -> BodyNeed:
        """Return the need of texts or prompts of this number of tokens, within the `limits` of any body."""
        text = min(limits.max_body_bytes, _BYTES_BESIDE + BYTES_PER_TOKEN * tokens)
        values = min(max(_MAX_VALUES, 2 * limits.context_length), _VALUES_BESIDE + _VALUES_PER_TOKEN * tokens)
        return cls(limits.max_body_bytes if takes_images else text, values, text)


def count_values(body: bytes, limit: int) -> int:
    """Return the number of values that `body` may hold; counting stops above `limit`.

    The body is counted in slices: if every byte is a separator, counting 32 MiB takes a third of a second. An image has
    no separator: to find none takes a hundredth of the time of counting.
    """
    count = 0
    for start in range(0, len(body), _SLICE):
        end = start + _SLICE
        count += sum(body.count(each, start, end) for each in _SEPARATORS if body.find(each, start, end) >= 0)
        if count > limit:
            break
    return count
