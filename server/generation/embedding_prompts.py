"""The prompts of embedding models: texts that precede an input and name its use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from numaserve.server.generation.embedding_settings import EmbeddingSettings
from numaserve.server.http.errors import bad_request
from numaserve.server.http.explain import CONFLICT

InputType = Literal["query", "document", "passage", "search_query", "search_document", "classification", "clustering"]
Inputs = Sequence[str] | Sequence[list[int]]

# Other names under which models have the prompt of a type; the first that exists is used.
_SYNONYMS: Mapping[InputType, tuple[str, ...]] = {
    "query": ("search_query",),
    "search_query": ("query",),
    "document": ("passage", "corpus", "search_document"),
    "passage": ("document", "corpus", "search_document"),
    "search_document": ("document", "passage", "corpus"),
}
_MOST_NAMES = 50  # of an error message


def prompted(
    settings: EmbeddingSettings, inputs: Inputs, name: str | None = None, input_type: InputType | None = None
) -> Inputs:
    """Return texts after their prompt, as the model reads them. Token ids are returned as they are.

    `name` and `input_type` choose the prompt, otherwise it is the model's default one. Raises `ApiError` for an unknown
    name, for both at once, and for either with token ids.
    """
    if name is not None and input_type is not None:
        message = "'prompt_name' and 'input_type' both choose a prompt. Send one of them."
        raise bad_request(message, "prompt_name", CONFLICT)
    prompt = _prompt(settings, name, input_type)
    texts = [each for each in inputs if isinstance(each, str)]
    if texts:
        whole = [prompt + text for text in texts]
        return [text.lower() for text in whole] if settings.lowercase else whole
    if name is not None or input_type is not None:
        chosen = "input_type" if name is None else "prompt_name"
        message = (
            f"'{chosen}' chooses a prompt for texts, and 'input' has token ids. Send texts, or leave '{chosen}' out."
        )
        raise bad_request(message, chosen, CONFLICT)
    return inputs


def _prompt(settings: EmbeddingSettings, name: str | None, input_type: InputType | None) -> str:
    if name is not None and name not in settings.prompts:
        raise bad_request(_unknown(settings, name), "prompt_name", "prompt_unknown")
    if input_type is not None:
        name = _name_of(settings, input_type)
    chosen = settings.default_prompt if name is None else name
    return "" if chosen is None else settings.prompts[chosen]


def _name_of(settings: EmbeddingSettings, input_type: InputType) -> str | None:
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
