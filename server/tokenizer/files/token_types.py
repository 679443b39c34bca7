"""The rule of transformers by which the tokens of a pair have types."""

from collections.abc import Mapping

# Classes of transformers whose `model_input_names` have the types. No other class has: neither those of RoBERTa and
# XLM-R nor, since version 5, the general ones, whatever tokenizer.json says about the second text.
TYPED_CLASSES = frozenset(
    f"{name}Tokenizer"
    for name in (
        *("Bert", "Canine", "ConvBert", "DPRQuestionEncoder", "Deberta", "DebertaV2", "Electra", "FNet", "LayoutLM"),
        *("LayoutLMv2", "Lxmert", "MarkupLM", "MobileBert", "SqueezeBert", "Tapas"),
    )
)
_TYPED_MODELS = frozenset(("bert", "nomic_bert"))  # served models that have such a class if their files name none


def has_token_types(config: Mapping[str, object], model: Mapping[str, object]) -> bool:
    """Return whether tokens of a pair have the types of tokenizer.json: `model_input_names` of tokenizer_config.json
    (`config`) lists them or, without this field, those of the tokenizer's class. `model` is config.json."""
    names = config.get("model_input_names")
    if isinstance(names, list):
        return "token_type_ids" in names
    name = config.get("tokenizer_class") or model.get("tokenizer_class")
    if not name:
        return model.get("model_type") in _TYPED_MODELS
    return isinstance(name, str) and name.removesuffix("Fast") in TYPED_CLASSES
