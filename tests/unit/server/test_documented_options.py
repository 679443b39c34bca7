"""The documentation names every option, metric and request field, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from numaserve.configs import presets
from numaserve.server.api.chat_schema import ChatRequest
from numaserve.server.api.completion_schema import CompletionRequest
from numaserve.server.cli.main import app
from numaserve.server.config import ServeConfig
from numaserve.server.metrics.labels import FINISH_REASONS, PAGE_STATES, PHASES, REFUSALS, REQUEST_STATES, STAGES
from numaserve.server.metrics.metrics import Metrics
from numaserve.workers.bench.shapes import SHAPES
from numaserve.workers.models.registry import ARCHITECTURES, GGUF_ARCHITECTURES

DOCS = Path(__file__).parents[3] / "docs"


def section(page: str, title: str | None = None) -> str:
    text = (DOCS / f"{page}.md").read_text()
    return text if title is None else text.split(f"## {title}\n")[1].split("\n## ")[0]


def option_rows() -> dict[str, str]:
    """Option to the default that its row of the table gives."""
    rows = re.findall(r"^\| (`--.*?) \| (.*?) \|", section("options"), re.MULTILINE)
    return {option: default.strip("`") for names, default in rows for option in re.findall(r"`(--[a-z-]+)`", names)}


def serve_options() -> set[str]:
    serve = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {name for each in serve.params for name in (*each.opts, *each.secondary_opts) if name.startswith("--")}


def metric_names() -> set[str]:
    families = Metrics("m").registry.collect()
    return {family.name + {"counter": "_total", "info": "_info"}.get(family.type, "") for family in families}


def test_every_option_of_serve_has_its_row_and_every_row_its_option() -> None:
    assert set(option_rows()) == serve_options()


@pytest.mark.parametrize("key", sorted(ServeConfig.model_fields))
def test_the_defaults_in_the_table_are_the_real_ones(key: str) -> None:
    default = ServeConfig.model_fields[key].default
    row = option_rows().get("--" + key.replace("_", "-"))
    if isinstance(default, bool):
        assert row == ("on" if default else "off")
    elif isinstance(default, int | float | str):
        assert row == str(default)
    else:  # worked out at the start; the table says how
        assert key == "model" or row


def test_every_command_is_named() -> None:
    for command in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f"`numaserve {command}" in section("options")


@pytest.mark.parametrize("name", ["kernels", "ring", "offline", "load"])
def test_every_option_of_a_measurement_is_named(name: str) -> None:
    command = typer.main.get_command(app).commands["bench"].commands[name]  # type: ignore[attr-defined]
    options = {each.opts[0] for each in command.params if each.opts[0].startswith("--")}
    text = section("benchmarking")
    assert {each for each in options if f"`{each}" not in text} <= {"--json"}
    assert "--json FILE" in text


def test_every_shape_is_named() -> None:
    assert set(SHAPES) <= set(re.findall(r"`([\w.-]+)`", section("benchmarking")))


def test_every_metric_is_in_the_table_and_every_name_in_it_is_a_metric() -> None:
    named = set(re.findall(r"`((?:numaserve|process|vllm)[_:]\w+)(?:\{[a-z_,]+\})?`", section("operations", "Metrics")))
    assert named == metric_names()


def test_every_value_of_a_label_is_in_the_table() -> None:
    values = {*FINISH_REASONS, *REFUSALS, *PHASES, *STAGES, *PAGE_STATES, *REQUEST_STATES}
    assert values <= set(re.findall(r"`(\w+)`", section("operations", "Metrics")))


@pytest.mark.parametrize("request_type", [ChatRequest, CompletionRequest])
def test_every_field_of_a_request_is_named(request_type: type[ChatRequest | CompletionRequest]) -> None:
    named = set(re.findall(r"`(\w+)[.`]", section("api")))
    assert set(request_type.model_fields) <= named


def test_every_architecture_is_in_the_table() -> None:
    named = set(re.findall(r"`([\w-]+)`", section("models", "Families")))
    assert {*ARCHITECTURES, *GGUF_ARCHITECTURES} <= named


def test_every_preset_is_named() -> None:
    assert set(presets()) <= set(re.findall(r"`([\w.-]+)`", section("options")))
