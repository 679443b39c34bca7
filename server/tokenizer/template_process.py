"""The child process that renders one chat template; started by `chat_template.ChatTemplate`.

Run as a script by its path, so that it imports jinja2 and the standard library only and starts quickly. Its first input
line is the configuration, every further line the arguments of one rendering; each of those is answered by one line,
`{"text": ...}` or `{"error": ...}`. It ends when its input does.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_ERROR_CHARS = 500


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is simply written."""

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


def _environment() -> ImmutableSandboxedEnvironment:
    """The environment that the templates of Hugging Face models are written for."""
    # Autoescaping is for HTML; a prompt must hold the client's characters as they are.
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


def _prepare() -> None:
    """What can be done before the configuration comes, with the first conversation."""
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signal_number, signal.SIG_IGN)  # sent to the whole group on shutdown, while requests still drain
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    # The time zone file and what jinja2 imports late must be read while files can be opened.
    time.localtime()
    with suppress(TemplateError):
        _environment().from_string("{{ raise_exception('\\n') }}").render()


def _confine(memory_bytes: int) -> None:
    """Give up what a template does not need: memory beyond the limit, and opening anything."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """Within it, the kernel ends this process after `seconds` of processor time.

    The kernel's timer, rather than a check in loops and calls: one operation such as `10 ** 10 ** 10` or a filter over
    a large list never comes back to the interpreter. Processor time, rather than time of day: a busy machine must not
    turn good requests away.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _bounded_text(template: Template, arguments: dict[str, Any], max_chars: int) -> str:
    pieces, size = [], 0
    for piece in template.generate(arguments):
        size += len(piece)
        if size > max_chars:
            raise TemplateError(f"it writes more than {max_chars} characters")
        pieces.append(piece)
    return "".join(pieces)


def _answer(work: Callable[[], str]) -> dict[str, str]:
    try:
        return {"text": work()}
    except TemplateError as error:
        return {"error": str(error.message)[:MAX_ERROR_CHARS]}
    except MemoryError:
        return {"error": "it uses too much memory"}
    except Exception as error:  # a template may raise anything; the answer must come all the same
        return {"error": f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]}


def main() -> None:
    """Serve renderings until the input ends."""
    _prepare()
    first = sys.stdin.readline()
    if not first:
        return  # the server ended before it asked for anything
    config = json.loads(first)
    _confine(config["memory_bytes"])
    template: Template | None = None
    for line in sys.stdin:

        def render(line: str = line) -> str:
            nonlocal template
            with _cpu_limit(config["cpu_seconds"]):
                template = template or _environment().from_string(config["template"])
                return _bounded_text(template, json.loads(line), config["max_chars"])

        print(json.dumps(_answer(render)), flush=True)


if __name__ == "__main__":
    main()
