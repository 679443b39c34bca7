"""Which parts of which page are written from the code, and how they are put there.

A part stands between two comments, that Markdown does not show:

    <!-- generated: routes -->
    ...
    <!-- end -->
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.documentation import api, metrics, options, packages, targets

ROOT = Path(__file__).resolve().parents[2]
_PART = re.compile(r"(?P<begin><!-- generated: (?P<name>[\w -]+) -->\n)(?P<text>.*?)(?P<end><!-- end -->\n)", re.DOTALL)
PARTS: Mapping[str, Callable[[], str]] = {
    "families": packages.families,
    "models": packages.models,
    "supported": packages.supported,
    "main options": partial(options.options, "serve", only=options.MAIN),
    "options of serve": partial(options.options, "serve"),
    "options of agent": partial(options.options, "agent"),
    "options of topology": partial(options.beyond_serve, "topology"),
    "options of plan": partial(options.beyond_serve, "plan"),
    "options of doctor": partial(options.options, "doctor"),
    "options of profile": partial(options.options, "profile"),
    "options of top": partial(options.options, "top"),
    "options of chat": partial(options.beyond_serve, "chat"),
    "commands": options.commands,
    "presets": packages.shipped_presets,
    "hosts": packages.shipped_hosts,
    "mlperf tasks": packages.mlperf_tasks,
    "checks of doctor": packages.host_checks,
    "shapes": packages.shapes,
    "formats of calls": packages.tool_call_formats,
    "formats of thoughts": packages.thought_formats,
    "bench commands": partial(options.commands, "bench"),
    **{
        f"options of bench {name}": partial(options.beyond_serve, "bench", name)
        for name in options.names("bench")
        if name != "compare"
    },
    "options of bench compare": partial(options.options, "bench", "compare", beside=("bench", "serve")),
    "routes": api.routes,
    "fields of both": api.common_fields,
    "fields of constraints": api.constraint_fields,
    "fields of chat": api.chat_fields,
    "fields of completions": api.completion_fields,
    "fields of a message": api.message_fields,
    "fields of other routes": api.other_fields,
    "fields without effect": api.unheeded_fields,
    "fields that are refused": api.refused_fields,
    "metrics": metrics.metrics,
    "metrics of several models": metrics.fleet_metrics,
    "make targets": targets.tables,
}


def pages() -> list[Path]:
    """Return the files of the documentation."""
    return [
        *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
        *sorted((ROOT / "docs").glob("**/*.md")),
    ]


def renewed(page: str) -> str:
    """The text of a page with its generated parts as they should be. Raises `KeyError` for a part that nobody makes."""
    return _PART.sub(lambda part: part["begin"] + "\n" + PARTS[part["name"]]() + "\n" + part["end"], page)


def named_in(page: str) -> set[str]:
    """The generated parts of a page."""
    return {part["name"] for part in _PART.finditer(page)}
