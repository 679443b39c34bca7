"""The header that names the images of a request which the model does not see."""

from collections.abc import Sequence

from numaserve.server.http.explain import Problem

HEADER = "X-Numaserve-Images-Left-Out"
MAX_NAMES = 16  # in the header of one answer


def header(images: Sequence[Problem]) -> str:
    """Return the header's value, an RFC 9651 list: the number of images, then the fields of some with the reasons."""
    named = [f'"{image.param}";reason={image.code}' for image in images[:MAX_NAMES]]
    return ", ".join((str(len(images)), *named))
