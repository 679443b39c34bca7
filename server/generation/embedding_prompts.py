"""The prompts of embedding models: texts that precede an input and name its use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.http.errors import bad_request
from numaserve.server.http.explain import CONFLICT

InputType = Literal["query", "document", "passage", "search_query", "search_document", "classification", "clustering"]
Task = Literal["retrieval.query", "retrieval.passage", "text-matching", "classification", "separation"]  # Jina's
Inputs = Sequence[str] | Sequence[list[int]]

_NAME = "prompt_name"  # the field whose value is the name of a prompt; the values of other fields are types
# Other names under which models have the prompt of a type; the first that exists is used.
_SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "query": ("search_query", "retrieval.query"),
    "search_query": ("query", "retrieval.query"),
    "retrieval.query": ("query", "search_query"),
    "document": ("passage", "corpus", "search_document", "retrieval.passage"),
    "passage": ("document", "corpus", "search_document", "retrieval.passage"),
    "search_document": ("document", "passage", "corpus", "retrieval.passage"),
    "retrieval.passage": ("passage", "document", "corpus", "search_document"),
    "text-matching": ("sts",),
    "clustering": ("separation",),
    "separation": ("clustering",),
}
_MOST_NAMES = 50  # of an error message


def prompted(settings: EmbeddingSettings, inputs: Inputs, choices: Mapping[str, str | None], param: str) -> Inputs:
    """Return texts after their prompt, as the model reads them. Token ids are returned as they are.

    `choices` are the values of the request's fields that choose the prompt: `prompt_name`, and fields with the type of
    the inputs. Without a value it is the model's default prompt. `param` is the field of the inputs. Raises `ApiError`
    for an unknown name, for two choices, and for a choice with token ids.
    """
    chosen = [(field, value) for field, value in choices.items() if value is not None]
    if len(chosen) > 1:
        (first, _), (second, _), *_ = chosen
        raise bad_request(f"'{first}' and '{second}' both choose a prompt. Send one of them.", first, CONFLICT)
    prompt = _prompt(settings, *chosen[0]) if chosen else _text_of(settings, settings.default_prompt)
    texts = [each for each in inputs if isinstance(each, str)]
    if texts:
        whole = [prompt + text for text in texts]
        return [text.lower() for text in whole] if settings.lowercase else whole
    if chosen:
        field = chosen[0][0]
        message = (
            f"'{field}' chooses a prompt for texts, and '{param}' has token ids. Send texts, or leave '{field}' out."
        )
        raise bad_request(message, field, CONFLICT)
    return inputs


def _prompt(settings: EmbeddingSettings, field: str, value: str) -> str:
    if field == _NAME:
        if value not in settings.prompts:
            raise bad_request(_unknown(settings, value), _NAME, "prompt_unknown")
        return settings.prompts[value]
    return _text_of(settings, _name_of(settings, value) or settings.default_prompt)


def _text_of(settings: EmbeddingSettings, name: str | None) -> str:
    return "" if name is None else settings.prompts[name]


def _name_of(settings: EmbeddingSettings, input_type: str) -> str | None:
    """Return the name of the prompt for inputs of a type, in any case of letters; None if the model has none."""
    names = {name.lower(): name for name in settings.prompts}
    wanted = (input_type, *_SYNONYMS.get(input_type, ()))
    return next((names[each] for each in wanted if each in names), None)


def _unknown(settings: EmbeddingSettings, name: str) -> str:
    given = f"'prompt_name' is {name[:100]!r}"
    if not settings.prompts:
        return f"{given}, but this model has no prompts. Leave 'prompt_name' out."
    known = ", ".join(repr(each[:100]) for each in list(settings.prompts)[:_MOST_NAMES])
    more = ", and others" if len(settings.prompts) > _MOST_NAMES else ""
    return f"{given}, but this model's prompts are {known}{more}. Send one of these names, or leave 'prompt_name' out."
