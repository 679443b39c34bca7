"""The fields of config.json that make a decoder bidirectional."""

from numaserve.workers.models.config.fields import Fields


def is_bidirectional(fields: Fields) -> bool:
    """Return whether config.json makes a decoder bidirectional."""
    return fields.flag("use_bidirectional_attention", False) or not fields.flag("is_causal", True)


def refuse_bidirectional(fields: Fields) -> None:
    """Raise `OperatorError` if config.json makes a decoder bidirectional."""
    fields.refuse("use_bidirectional_attention", False)
    fields.refuse("is_causal", True)
