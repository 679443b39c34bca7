"""The size of an answer, bounded before anything is computed for it.

Every route whose answer grows with its request declares the size of its answer here, or has it checked by `start`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from numaserve.server.generation.asked import Asked, Prompt, Texts, total_tokens
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.embedding_settings import Form
from numaserve.server.http.body.need import BYTES_PER_TOKEN
from numaserve.server.http.errors import ApiError, bad_request
from numaserve.server.http.limits import ApiLimits

_FRAME = 1024  # what surrounds the items of an answer
_ITEM = 256  # names and numbers around the content of an item
_NUMBER = 25  # "-1.2345678901234567e-05,"
_FP32 = 4
_OF_NUMBER: dict[Form, int] = {"float": _NUMBER, "base64": 6, "binary": 1, "ubinary": 1}
_WEIGHT = len('{"index":4294967295,"value":},') + _NUMBER
_KEPT_WEIGHT = 8
_CHARACTER = 6  # "\u0000"
_ID = 12
# A token with its log-probability: as text, as bytes, and the names of both.
_LOGPROB = 128 + BYTES_PER_TOKEN


@dataclass(frozen=True)
class AnswerSize:
    """The maximum size of an answer to several inputs, in bytes: as JSON, and as its vectors are kept until then."""

    item: int = 0  # JSON of each input
    token: int = 0  # JSON of each token of the inputs
    beside: int = 0  # JSON that depends on neither
    kept_item: int = 0
    kept_token: int = 0

    @classmethod
    def of_vectors(cls, size: int, returned: int | None, forms: Sequence[Form], *, beside: int = 0) -> AnswerSize:
        """Return the size of a vector of `size` dimensions for each input; the answer has the first `returned`."""
        numbers = (returned or size) * sum(_OF_NUMBER[form] for form in forms)
        return cls(_ITEM * len(forms) + numbers, beside=beside, kept_item=size * _FP32)

    @classmethod
    def of_token_vectors(cls, size: int, form: Form) -> AnswerSize:
        """Return the size of a vector of `size` dimensions for each token."""
        return cls(_ITEM, _NUMBER + size * _OF_NUMBER[form], kept_item=_FP32, kept_token=size * _FP32)

    @classmethod
    def of_weights(cls, entries: int | None) -> AnswerSize:
        """Return the size of sparse vectors: of `entries` for each input, or None: of an entry for each token."""
        if entries is None:
            return cls(_ITEM, _WEIGHT, kept_item=_FP32, kept_token=_KEPT_WEIGHT)
        return cls(_ITEM + entries * _WEIGHT, kept_item=_FP32 + entries * _KEPT_WEIGHT)

    @classmethod
    def of_scores(cls, labels: Sequence[str] = ("",), *, texts: Iterable[str] = ()) -> AnswerSize:
        """Return the size of a score of each label for each input, in an answer that repeats `texts`."""
        item = sum(_ITEM + _CHARACTER * len(label) for label in labels)
        return cls(item, beside=size_of_texts(texts), kept_item=max(len(labels) * _FP32, 16))

    def kept(self, inputs: int, tokens: int = 0) -> int:
        """Return the bytes to keep."""
        return inputs * self.kept_item + tokens * self.kept_token

    def check(self, limits: ApiLimits, param: str, inputs: int, tokens: int = 0) -> None:
        """Raise `ApiError` where the answer to `inputs` of `tokens` in all could exceed the limit.

        `param` is the field with the inputs.
        """
        size = _FRAME + self.beside + inputs * self.item + tokens * self.token
        if size > limits.max_answer_bytes:
            raise _too_large(size, limits.max_answer_bytes, "Send fewer inputs at once.", param)
        kept = self.kept(inputs, tokens)
        if kept > limits.max_bytes_unread:
            raise _too_large(kept, limits.max_bytes_unread, "Send fewer inputs at once.", param, "vectors of the ")


def size_of_texts(texts: Iterable[str]) -> int:
    """Return the most bytes of JSON strings with these texts."""
    return _CHARACTER * sum(map(len, texts))


def check_texts(limits: ApiLimits, param: str, *, tokens: int = 0, characters: int = 0) -> None:
    """Raise `ApiError` where an answer of these numbers of token ids and characters could exceed the limit."""
    size = _FRAME + tokens * _ID + characters * _CHARACTER
    if size > limits.max_answer_bytes:
        raise _too_large(size, limits.max_answer_bytes, "Shorten the input.", param)


def bounded(context: ApiContext, asked: Asked, prompts: Sequence[Prompt]) -> Asked:
    """Return the request with as many output tokens as its answer can hold, where the client set no limit.

    A token counts as many bytes as in the bound of bodies. Raises `ApiError` where the answer could exceed the limit.
    """
    limit, sequences = context.limits.max_answer_bytes, len(prompts) * asked.sampling.n
    likeliest = max(0, asked.logprobs + 1)
    token = BYTES_PER_TOKEN + _ID + _LOGPROB * (likeliest + len(asked.token_ids_logprob))
    of_prompt = _ID + _LOGPROB * likeliest * asked.prompt_logprobs
    if isinstance(asked.input, Texts) and asked.input.echo:
        of_prompt += BYTES_PER_TOKEN
    beside = _FRAME + sequences * _ITEM + of_prompt * total_tokens(prompts) * asked.sampling.n
    room = (limit - beside) // (token * sequences)
    # More than the context holds is refused later, with an error about the context.
    wanted = 1 if asked.max_tokens is None else min(asked.max_tokens, context.limits.context_length)
    if wanted > room:
        remedy = "Request fewer output tokens, fewer answers or fewer log-probabilities."
        raise _too_large(beside + token * sequences * wanted, limit, remedy, None)
    default = asked.default_max_tokens
    return replace(asked, default_max_tokens=room if default is None else min(default, room))


def _too_large(size: int, limit: int, remedy: str, param: str | None, what: str = "") -> ApiError:
    message = f"The {what}answer could take {size} bytes (limit {limit}). {remedy}"
    return bad_request(message, param, "answer_too_large")
