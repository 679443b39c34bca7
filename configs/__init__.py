"""Data that the package carries: presets for ``numaserve serve --config NAME``, by use and by model; sampling
defaults for models whose files have none; hosts for ``numaserve plan --host NAME``; efficiencies of the kernels;
published figures of other servers, and the latency limits of MLPerf's tasks."""

from pathlib import Path

_FOLDER = Path(__file__).parent


def presets() -> dict[str, Path]:
    """The file of every preset of the configuration, by name."""
    return _by_name("presets") | _by_name("models")


def generation_configs() -> dict[str, Path]:
    """The generation_config.json of models that are published without one, by the name that an operator uses."""
    return _by_name("generation", "json")


def hosts() -> dict[str, Path]:
    """The file of every host, by name."""
    return _by_name("hosts")


def efficiencies() -> dict[str, Path]:
    """The file of the measurements of `numaserve bench kernels` with an instruction set, by its name."""
    return _by_name("efficiencies", "jsonl")


def published() -> dict[str, Path]:
    """The file of every publication of figures that `numaserve bench host` compares with, by the server's name."""
    return _by_name("published")


def mlperf() -> Path:
    """The file of the latency limits of MLPerf's tasks."""
    return _FOLDER / "mlperf.yaml"


def _by_name(folder: str, kind: str = "yaml") -> dict[str, Path]:
    return {path.stem: path for path in sorted((_FOLDER / folder).glob(f"*.{kind}"))}
