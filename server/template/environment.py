"""The Jinja environment that chat templates of Hugging Face models expect."""

import importlib
import json
import time
from contextlib import suppress
from datetime import datetime

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Modules that jinja2, markupsafe and the interpreter import on demand: for a filter (`wordwrap`, `pprint`,
# `striptags`), `lipsum`, `\N{...}` in a string, numbers of thousands of digits, a warning of the compiler.
_IMPORTED_LATE = (
    "html",
    "jinja2.constants",
    "jinja2.debug",
    "linecache",
    "pprint",
    "textwrap",
    "tracemalloc",
    "unicodedata",
    "_pylong",  # Python 3.12
)
_CODECS = ("ascii", "latin-1", "utf-8-sig", "utf-16", "utf-32", "cp1252", "unicode-escape", "idna")


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is rendered as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _strftime_now(format_string: str) -> str:
    return datetime.now().strftime(format_string)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which is wrong in a prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def make_environment() -> ImmutableSandboxedEnvironment:
    """Return a new environment."""
    # Autoescaping is for HTML; a prompt must contain the client's characters unchanged.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,
        extensions=[loopcontrols, _GenerationTag],
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def load_everything() -> None:
    """Read every file that rendering may need, because no file can be opened afterwards."""
    time.localtime()  # the time zone
    for name in _IMPORTED_LATE:
        with suppress(ImportError):
            importlib.import_module(name)
    for name in _CODECS:
        "a".encode(name)
    with suppress(TemplateError):  # everything else that an error needs
        make_environment().from_string("{{ raise_exception('\\n') }}").render()
