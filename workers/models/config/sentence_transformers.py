"""The files of sentence-transformers: how a model's hidden states become an embedding, and its prompts.

The layout has two forms. Version 5.4 renamed the classes and gave a Pooling module one field `pooling_mode`; earlier
versions wrote a flag for each mode. The last part of a class's name is the same in both.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.interface.files import CONFIG_BYTES, is_there, parse_json, read_json, read_text
from numaserve.workers.models.config.fields import Fields
from numaserve.workers.program.ops.products import Activation
from numaserve.workers.program.ops.rows import Pooling

_MAX_TOKENS = 1 << 30
_MAX_FEATURES = 1 << 17
_MAX_DENSE = 16  # published models have at most two
_REDOWNLOAD = "Download the model again"
_POOLINGS: Mapping[str, Pooling] = {"cls": "cls", "mean": "mean", "lasttoken": "last", "max": "max"}
_REFUSED = ("mean_sqrt_len_tokens", "weightedmean")
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
# Classes of torch, by the last part of the name.
_ACTIVATIONS: Mapping[str, Activation] = {"Identity": "none", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu"}
# How often SPLADE takes log(1 + x) of a positive logit, by the activation.
_LOGARITHMS: Mapping[str, int] = {"relu": 1, "log1p_relu": 2}
_SPLADE = ["MLMTransformer", "SpladePooling"], ["Transformer", "SpladePooling"]  # before version 5.4, and since
_ORDER = (
    f"a Transformer, a Pooling, at most {_MAX_DENSE} Dense modules and at most one Normalize, in this order, or a"
    " Transformer and a SpladePooling"
)
# The first of these that exists is read, as in the library: the name depends on the version that wrote it.
_TRANSFORMER_FILES = tuple(
    f"sentence_{name}_config.json"
    for name in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)


@dataclass(frozen=True)
class DenseModule:
    """activation(weight · x + bias), in a folder below the model's."""

    folder: str
    inputs: int
    outputs: int
    activation: Activation
    biased: bool


@dataclass(frozen=True)
class SentenceModules:
    """The modules of a model for embeddings, after its transformer."""

    pooling: Pooling  # of the hidden states of a text: the first, their mean, the last, or the maximum of each column
    normalize: bool  # whether embeddings are scaled to length 1
    logarithms: int = 0  # of SPLADE: how often log(1 + x) is taken of positive logits; 0: it is another model
    dense: tuple[DenseModule, ...] = ()  # between both, in order
    max_tokens: int | None = None  # of a text, with special tokens; None: the limit is the model's
    lowercase: bool = False  # whether texts are lowercased before they are tokenized
    prompts: Mapping[str, str] = field(default_factory=dict, hash=False)  # texts to put before an input, by name
    default_prompt: str | None = None  # name of the prompt of inputs without a name; None: no prompt


def read_sentence_modules(folder: Path) -> SentenceModules | None:
    """Return the modules that the files in `folder` declare; None for a folder without modules.json, or a file.

    Raises `OperatorError` for files that cannot be read, and for modules and modes that are not supported.
    """
    path = folder / "modules.json"
    if not folder.is_dir() or not is_there(path):
        return None
    listed = _modules(path)
    kinds = [kind for kind, _ in listed]
    dense = [place for kind, place in listed if kind == "Dense"]
    normalize, is_splade = "Normalize" in kinds, kinds in _SPLADE
    if len(dense) > _MAX_DENSE:
        raise OperatorError(
            f"{path}: the file lists {len(dense)} Dense modules (limit {_MAX_DENSE}). Serve another model"
        )
    if not is_splade and kinds != ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalize]:
        shown = ", ".join(kind[:100] for kind in kinds) or "none"
        raise OperatorError(f"{path}: the modules are {shown}; supported are {_ORDER}. Serve another model")
    transformer, pooling = (place for _, place in listed[:2])
    if Path(transformer) != Path():
        raise OperatorError(
            f"{path}: the transformer lies in the folder {transformer}, an early layout that is not supported: move"
            " its files into the model's folder, and set its path to an empty string"
        )
    prompts, default = _prompts(folder / "config_sentence_transformers.json")
    settings, pooling_path = _settings(folder), folder / pooling / "config.json"
    return SentenceModules(
        pooling="max" if is_splade else _pooling(pooling_path, has_prompts=any(prompts.values())),
        normalize=normalize,
        logarithms=_logarithms(pooling_path) if is_splade else 0,
        dense=tuple(_dense(folder, place) for place in dense),
        max_tokens=settings.optional_integer("max_seq_length", 1, _MAX_TOKENS),
        lowercase=settings.flag("do_lower_case", False),
        prompts=prompts,
        default_prompt=default,
    )


def _logarithms(path: Path) -> int:
    """Return how often a SpladePooling module takes log(1 + x). Raises `OperatorError` for sums over the tokens."""
    config = Fields(read_json(path) if is_there(path) else {}, str(path))
    strategy = config.text("pooling_strategy", "max")
    if strategy != "max":
        raise config.error(
            f"pooling_strategy={strategy[:100]!r} is not supported; supported values: max. Serve another model"
        )
    return config.choice("activation_function", _LOGARITHMS, "relu")


def _modules(path: Path) -> list[tuple[str, str]]:
    """Return the kind and the folder of each module."""
    try:
        listed = parse_json(read_text(path, CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise OperatorError(f"{path}: not valid JSON ({error}). {_REDOWNLOAD}") from error
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise OperatorError(f"{path}: not a list of objects. {_REDOWNLOAD}")
    return [_module(Fields(each, f"{path}: module {index}")) for index, each in enumerate(listed)]


def _module(module: Fields) -> tuple[str, str]:
    kind, place = module.text("type").rpartition(".")[2], module.text("path", "")
    if Path(place).is_absolute() or ".." in Path(place).parts:  # a checkpoint must not reach elsewhere
        raise module.error(f"the path lies outside the model's folder. {_REDOWNLOAD}")
    return kind, place


def _dense(folder: Path, place: str) -> DenseModule:
    path = folder / place / "config.json"
    fields = Fields(read_json(path), str(path))
    fields.refuse("module_input_name", "sentence_embedding")
    fields.refuse("module_output_name", "sentence_embedding")
    kind = fields.text("activation_function", "torch.nn.modules.activation.Tanh").rpartition(".")[2]
    return DenseModule(
        place,
        fields.integer("in_features", 1, _MAX_FEATURES),
        fields.integer("out_features", 1, _MAX_FEATURES),
        Fields({"activation_function": kind}, str(path)).choice("activation_function", _ACTIVATIONS),
        fields.flag("bias", True),
    )


def _pooling(path: Path, *, has_prompts: bool) -> Pooling:
    """Return the mode of a Pooling module. Without a file it is the mean, as in the library."""
    config = Fields(read_json(path) if is_there(path) else {}, str(path))
    named = _modes(config)
    if len(named) != 1:
        raise config.error(
            f"the embedding joins several pooling modes ({', '.join(named)}), and one is supported: serve another model"
        )
    mode = Fields({"pooling_mode": named[0]}, str(path)).choice("pooling_mode", _POOLINGS)
    if has_prompts and mode in ("mean", "max") and not config.flag("include_prompt", True):
        raise config.error(
            f"the {mode} of a text leaves out its prompt (include_prompt is false), which is not supported: serve"
            " another model"
        )
    return mode


def _modes(config: Fields) -> list[str]:
    """Return the names of the modes in the newer form."""
    if not config.has("pooling_mode"):
        return [name for key, name in _FLAGS.items() if config.flag(key, False)] or ["mean"]
    value = config.values["pooling_mode"]
    if not isinstance(value, list):
        return [config.text("pooling_mode")]
    if not value or not all(name in _POOLINGS or name in _REFUSED for name in value):
        raise config.error(f"pooling_mode must have names of {', '.join((*_POOLINGS, *_REFUSED))}. {_REDOWNLOAD}")
    return cast(list[str], value)


def _settings(folder: Path) -> Fields:
    """Return the settings of the Transformer module; no fields if there is no file."""
    path = next((each for name in _TRANSFORMER_FILES if is_there(each := folder / name)), None)
    return Fields({} if path is None else read_json(path), str(path))


def _prompts(path: Path) -> tuple[Mapping[str, str], str | None]:
    """Return the prompts by name, and the name of the default one."""
    config = Fields(read_json(path) if is_there(path) else {}, str(path))
    declared = config.child("prompts")
    prompts = {name: declared.text(name, "") for name in declared.values}
    if not config.has("default_prompt_name"):
        return prompts, None
    default = config.text("default_prompt_name")
    if default not in prompts:
        known = ", ".join(prompts) or "none"
        raise config.error(f"default_prompt_name is {default[:100]!r}, and the prompts are: {known}. Name one of them")
    return prompts, default
