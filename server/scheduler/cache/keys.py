"""The keys by which the radix tree finds pages.

A position that holds a token has its id as key. A position that holds other content, such as a part of an image, has a
digest of that content and its place in it: its token id is only a placeholder, which all such positions share.
"""

from typing import NamedTuple

Key = int | bytes  # a token id, or a key of other content, see `content_key`
PageKey = tuple[Key, ...]  # of each position of a page
_ROW_BYTES = 2


class Content(NamedTuple):
    """Content of a page that is no text."""

    digest: str  # in hexadecimal
    start: int  # its first position, relative to that of the page: negative where it begins before the page


def content_key(digest: bytes, row: int) -> bytes:
    """Return the key of the position that holds row number `row` of the content of that digest."""
    return digest + row.to_bytes(_ROW_BYTES, "big")


def contents_of(key: PageKey) -> tuple[Content, ...]:
    """Return the contents of a page that are no text, in order, each once."""
    found = dict[Content, None]()
    for index, each in enumerate(key):
        if isinstance(each, bytes):
            digest, row = each[:-_ROW_BYTES], int.from_bytes(each[-_ROW_BYTES:], "big")
            found[Content(digest.hex(), index - row)] = None
    return tuple(found)
