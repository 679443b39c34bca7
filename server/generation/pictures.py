"""The images of a request: decoded, refused, or replaced by a text for the model.

Agents resend their history, and a bad image in it would make every later turn fail. Only an image of the last user turn
is refused. In place of any other the model reads why it is missing, and a header of the answer names the image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.conversation.content import Content, num_images, replaced
from numaserve.server.generation.conversation.images import Image
from numaserve.server.generation.conversation.messages import Conversation
from numaserve.server.generation.conversation.turns import Turn
from numaserve.server.generation.vision import Vision
from numaserve.server.http.errors import ApiError, Overflow, bad_request, context_length_exceeded
from numaserve.server.http.explain import Problem
from numaserve.server.http.fields.media import takes_no
from numaserve.server.images.types import ImageProblem, Picture
from numaserve.server.scheduler.cache.scope import CacheScope
from numaserve.server.text.caller import CALLER

_LEFT_OUT = "An image, which this server does not show to the model."
_IMAGE: Content = [{"type": "image"}]


@dataclass(frozen=True)
class Seen:
    """A conversation as the model sees it: turns, the pictures left in them, and the problems of other images."""

    turns: list[Turn]
    pictures: list[Picture]
    left_out: list[Problem]
    last: range  # indices of the user's last turn; none for a model without image input


async def see(context: ApiContext, conversation: Conversation, param: str, salt: str) -> Seen:
    """Decode the images of a conversation in the field `param`. Raises `ApiError`, `QueueFull` and `NotReady`."""
    turns, images = conversation.messages, conversation.images
    last = range(0) if context.vision is None else _last_user_turn(turns)
    if not images:
        return Seen(turns, [], [], last)
    turn_of = [index for index, turn in enumerate(turns) for _ in range(num_images(turn["content"]))]
    if context.vision is None:
        for image, index in zip(images, turn_of, strict=True):
            if turns[index]["role"] != "tool":
                raise _takes_no(image)
        return Seen(_with(turns, [f"[{_LEFT_OUT}]"] * len(images)), [], [], last)
    given = _Given(images, [index in last for index in turn_of])
    pictures = await given.decoded(context, context.vision, param, salt)
    shown = [_IMAGE if each is None else f"[{_LEFT_OUT} {each.message}]" for each in given.problems]
    return Seen(_with(turns, shown), pictures, [each for each in given.problems if each is not None], last)


async def decoded(context: ApiContext, images: Sequence[Image], salt: str) -> list[Picture]:
    """Decode images of which each is needed. Raises as `see` does."""
    if context.vision is None:
        raise _takes_no(images[0])
    given = _Given(images, [True] * len(images))
    return await given.decoded(context, context.vision, images[0].param, salt)


def _with(turns: list[Turn], shown: Sequence[Content]) -> list[Turn]:
    """Return the turns with an item of `shown` in place of each image."""
    contents = iter(shown)
    return [{**turn, "content": replaced(turn["content"], contents)} for turn in turns]


def _last_user_turn(turns: list[Turn]) -> range:
    """Return the indices of the last of the user's turns, and of those right before it: many clients send an image and
    its question in two messages."""
    is_user = [turn["role"] == "user" for turn in turns]
    end = max((index + 1 for index, is_it in enumerate(is_user) if is_it), default=0)
    return range(max((index + 1 for index in range(end) if not is_user[index]), default=0), end)


class _Given:
    """The images of a request, and the problem with each; a problem with one that is `needed` is an error."""

    def __init__(self, images: Sequence[Image], needed: Sequence[bool]) -> None:
        self._images = images
        self._needed = needed
        self.problems: list[Problem | None] = [image.problem for image in images]

    async def decoded(self, context: ApiContext, vision: Vision, param: str, salt: str) -> list[Picture]:
        """Return the pictures of the images without a problem, and count the others. Raises as `see` does."""
        try:
            pictures = await self._decoded(context, vision, param, salt)
        except ApiError as error:
            context.metrics.image_refused(error.code or "")
            raise
        for problem in self.problems:
            if problem is not None:
                context.metrics.image_refused(problem.code or "")
        return pictures

    async def _decoded(self, context: ApiContext, vision: Vision, param: str, salt: str) -> list[Picture]:
        for image, needed in zip(self._images, self._needed, strict=True):
            if image.problem is not None and needed and not image.of_earlier:
                raise _refused(image.problem)
        self._check_number(context, vision, param)
        texts = ["" if image.encoded is None else image.encoded.take() for image in self._images]
        client = CALLER.get()
        scope = CacheScope(client.cache_group, salt)
        wanted = self._usable()
        if not wanted:
            return []
        whole = frozenset(at for at, index in enumerate(wanted) if not self._images[index].split)
        found = await vision.decoder.decode([texts[index] for index in wanted], scope, client, whole=whole)
        for index, each in zip(wanted, found, strict=True):
            if isinstance(each, ImageProblem):
                problem = Problem(str(each), self._images[index].param, each.code)
                if self._needed[index]:
                    raise _refused(problem)
                self.problems[index] = problem
        return [each for each in found if isinstance(each, Picture)]

    def _usable(self) -> list[int]:
        return [index for index, problem in enumerate(self.problems) if problem is None]

    def _check_number(self, context: ApiContext, vision: Vision, param: str) -> None:
        """Leave out the oldest images beyond the limit. Raises `ApiError` where the needed ones alone exceed it, and
        for images that cannot fit the context however small they are."""
        most, usable = vision.decoder.limits.images, self._usable()
        message = f"There are {len(usable)} images; the limit is {most}. Send fewer images."
        older = [index for index in usable if not self._needed[index]]
        excess = max(0, len(usable) - most)
        if excess > len(older):
            raise bad_request(message, param, "too_many_images")
        for index in older[:excess]:
            self.problems[index] = Problem(message, self._images[index].param, "too_many_images")
        left, limit = len(usable) - excess, context.limits.context_length
        least = left * vision.settings.sizes.least_rows
        if least > limit:
            message = f"This model's maximum context length is {limit} tokens, but {left} images have {least} or more."
            raise context_length_exceeded(f"{message} Send fewer images.", param, Overflow(least, limit))


def _takes_no(image: Image) -> ApiError:
    return bad_request(f"Invalid value for '{image.param}': {takes_no('images')}.", image.param, "invalid_value")


def _refused(problem: Problem) -> ApiError:
    return bad_request(f"Invalid value for '{problem.param}': {problem.message}", problem.param, problem.code)
