"""The tokenizer of a model folder in Hugging Face's layout."""

from pathlib import Path
from typing import Any

import tokenizers
from numaserve.server.tokenizer.chat_template import ChatTemplate
from numaserve.server.tokenizer.files import sentencepiece_file, tiktoken_file
from numaserve.server.tokenizer.files.token_types import has_token_types
from numaserve.server.tokenizer.tokenizer import Tokenizer
from numaserve.server.tokenizer.types import TokenizerError
from numaserve.workers.interface.files import TEMPLATE_BYTES, TOKENIZER_BYTES, is_there, read_file, read_json, read_text
from tokenizers import AddedToken, processors

_ADDED = "added_tokens_decoder"  # the field of tokenizer_config.json that lists tokens by id


def load_folder(folder: Path, chat_template: str | None = None) -> Tokenizer:
    """Return the tokenizer of the model in `folder`. Raises `TokenizerError` if there is none or it cannot be used.

    `chat_template` replaces the model's own. Only data is read: `auto_map` and other code in the folder is ignored.
    """
    config = _read_json(folder / "tokenizer_config.json")
    # First: its process starts while the vocabulary is built.
    template = ChatTemplate.of(_template_in(folder, config) if chat_template is None else chat_template)
    backend, special = _backend(folder, config)
    listed = special.pop(_ADDED, {}) | (config.get(_ADDED) or {})
    special |= _read_json(folder / "special_tokens_map.json") | config
    _add_configured_tokens(backend, listed, folder)
    bos, eos = (_token_id(backend, special.get(name)) for name in ("bos_token", "eos_token"))
    _set_bos(backend, bos, special.get("add_bos_token"))
    return Tokenizer(
        backend,
        eos_token_ids=_end_ids(folder, eos),
        bos_token_id=bos,
        eos_token_id=eos,
        chat_template=template,
        has_types=has_token_types(config, _read_json(folder / "config.json")),
    )


def _backend(folder: Path, config: dict[str, Any]) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """Return the tokenizer and the defaults for `config`, the content of tokenizer_config.json."""
    path = folder / "tokenizer.json"
    if not is_there(path):
        return _converted(folder, config)
    content = read_file(path, TOKENIZER_BYTES)
    try:
        return tokenizers.Tokenizer.from_buffer(content), {}
    except Exception as error:  # the Rust library raises plain Exception
        raise TokenizerError(f"{path} cannot be read ({error}); download it again") from error


def _converted(folder: Path, config: dict[str, Any]) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    pieces, ranks = folder / "tokenizer.model", folder / "tiktoken.model"
    if is_there(pieces):
        model = sentencepiece_file.read_model(pieces)
        special = {"bos_token": model.text_of(model.bos), "eos_token": model.text_of(model.eos)}
        # As transformers' classes for such models.
        return sentencepiece_file.backend_of(model), {**special, "add_bos_token": True}
    if is_there(ranks):
        tiktoken_file.check_class(config, ranks)
        tokens = tiktoken_file.read_ranks(ranks)
        return tiktoken_file.backend_of(tokens), {_ADDED: tiktoken_file.reserved_tokens(len(tokens))}
    raise TokenizerError(
        f"{folder} has none of tokenizer.json, tokenizer.model and tiktoken.model; download one with the model, or "
        "create tokenizer.json with transformers.AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
    )


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in the file at `path`; an empty one if there is no file."""
    return read_json(path) if is_there(path) else {}


def _add_configured_tokens(backend: tokenizers.Tokenizer, listed: dict[str, dict[str, Any]], folder: Path) -> None:
    """Add the tokens that tokenizer_config.json lists in addition to the vocabulary, as transformers does."""
    known = backend.get_added_tokens_decoder()
    for token_id, fields in sorted((int(key), value) for key, value in listed.items()):
        if token_id in known:
            continue
        flags = {
            name: bool(fields[name]) for name in ("lstrip", "rstrip", "normalized", "single_word") if name in fields
        }
        add = backend.add_special_tokens if fields.get("special") else backend.add_tokens
        add([AddedToken(fields["content"], special=bool(fields.get("special")), **flags)])
        if backend.token_to_id(fields["content"]) != token_id:
            raise TokenizerError(
                f"{folder}: tokenizer_config.json gives {fields['content']!r} the id {token_id}, "
                "which contradicts the vocabulary; download all files from the same model"
            )


def _content(token: object) -> str | None:
    """Return the text of a token, which is written as a string or as an object."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) else None


def _token_id(backend: tokenizers.Tokenizer, token: object) -> int | None:
    content = _content(token)
    return None if content is None else backend.token_to_id(content)


def _set_bos(backend: tokenizers.Tokenizer, bos: int | None, wanted: bool | None) -> None:
    """Apply `add_bos_token` if tokenizer.json differs; None keeps the behaviour of tokenizer.json."""
    if wanted is None or bos is None or (backend.encode("").ids[:1] == [bos]) == wanted:
        return
    text = backend.id_to_token(bos)
    single = [text, "$A"] if wanted else ["$A"]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=[(text, bos)])


def _end_ids(folder: Path, eos: int | None) -> frozenset[int]:
    """Return all ids that end a generation: those of the tokenizer, the model and the generation configuration."""
    ids = set() if eos is None else {eos}
    for name in ("config.json", "generation_config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        ids |= {token_id for token_id in (value if isinstance(value, list) else [value]) if isinstance(token_id, int)}
    return frozenset(ids)


def folder_chat_template(folder: Path) -> str | None:
    """Return the chat template of the model in `folder`; None if it has none. Raises `TokenizerError`."""
    return _template_in(folder, _read_json(folder / "tokenizer_config.json"))


def _template_in(folder: Path, config: dict[str, Any]) -> str | None:
    """Return the model's template, from a file of its own or from the configuration. Raises `TokenizerError`."""
    path = folder / "chat_template.jinja"
    if is_there(path):
        return read_text(path, TEMPLATE_BYTES)
    template = _read_json(folder / "chat_template.json").get("chat_template") or config.get("chat_template")
    if isinstance(template, list):
        return _default_of(template, folder)
    return template if isinstance(template, str) else None


def _default_of(templates: list[object], folder: Path) -> str:
    named = {entry.get("name"): entry.get("template") for entry in templates if isinstance(entry, dict)}
    default = named.get("default")
    if not isinstance(default, str):
        names = ", ".join(sorted(repr(name)[:64] for name in named if isinstance(name, str))) or "none with a name"
        raise TokenizerError(
            f"{folder}: none of the model's chat templates is named 'default'; their names are {names}. "
            "Save the template to use in a file and pass that file with --chat-template"
        )
    return default
