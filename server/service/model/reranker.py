"""The answer tokens of a reranker model."""

from pathlib import Path

from numaserve.server.generation.judge import Judge
from numaserve.server.tokenizer.types import TokenizerProtocol
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import is_there, read_json

_FIELD = "classifier_from_token"  # of config.json, as vLLM has it
_DEFAULT = ["no", "yes"]  # of Qwen3-Reranker


def find_judge(model: Path, tokenizer: TokenizerProtocol) -> Judge:
    """Return the tokens for no and yes that the model at `model` names, else those of Qwen3-Reranker.

    Raises `OperatorError` unless there are two and both are tokens of the vocabulary.
    """
    path = model / "config.json"
    words = read_json(path).get(_FIELD, _DEFAULT) if model.is_dir() and is_there(path) else _DEFAULT
    if not isinstance(words, list) or len(words) != 2 or not all(isinstance(word, str) for word in words):
        raise OperatorError(f"{path}: {_FIELD} must be a list of two words, the first for no and the second for yes")
    found = [tokenizer.encode(word, add_special_tokens=False) for word in words]
    for word, tokens in zip(words, found, strict=True):
        if len(tokens) != 1:
            raise OperatorError(
                f"--task score: {word!r} is not a single token of this model, so the model is not a "
                "known reranker. Use a reranker model"
            )
    (no,), (yes,) = found
    return Judge(no, yes)
