"""Tokenizers, chat templates, incremental detokenization and stop strings."""

from pathlib import Path

from numaserve.server.tokenizer.failures import while_loading
from numaserve.server.tokenizer.files.hf import folder_chat_template, load_folder
from numaserve.server.tokenizer.tokenizer import Tokenizer
from numaserve.server.tokenizer.types import TokenizerError


@while_loading
def load_tokenizer(path: Path, chat_template: str | None = None) -> Tokenizer:
    """Return the tokenizer of the model at `path`: a Hugging Face folder or a .gguf file.

    `chat_template` replaces the model's own; an empty one leaves the tokenizer without any.

    Raises `TokenizerError`, whose message states what the operator has to do.
    """
    if path.is_dir():
        return load_folder(path, chat_template)
    if path.suffix == ".gguf":
        from numaserve.server.tokenizer.files.gguf import load_gguf  # noqa: PLC0415 imports numpy, which folders do not need

        return load_gguf(path, chat_template)
    raise TokenizerError(f"{path} is neither a model folder nor a .gguf file; specify the path of one of these")


def own_chat_template(path: Path) -> str | None:
    """Return the chat template of the model at `path`, a folder or a .gguf file; None if it has none.

    The vocabulary is not built. Raises `TokenizerError` as `load_tokenizer` does.
    """
    if path.is_dir():
        return folder_chat_template(path)
    from numaserve.server.tokenizer.files.gguf import gguf_chat_template  # noqa: PLC0415 numpy, which folders do not need

    return gguf_chat_template(path)
