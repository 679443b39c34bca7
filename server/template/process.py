"""Renders one chat template until its input ends; started by `ChatTemplate`, which bounds what it may take."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from numaserve.server.confinement import confine, ignore_ends_of_the_group
from numaserve.server.template import ANSWER_HEAD, NOT_CONFINED
from numaserve.server.template.environment import load_everything, make_environment

MAX_ERROR_CHARS = 500


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """A context in which the kernel ends this process after `seconds` of processor time.

    The kernel's timer, rather than a check in loops and calls: one operation such as `10 ** 10 ** 10` or a filter over
    a large list never comes back to the interpreter. Processor time, rather than time of day: a busy machine must not
    turn good requests away.
    """
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class ClientsTemplate:
    """A template, and the variables in it that a client may set: those that neither it nor the server gives a value."""

    def __init__(self, source: str) -> None:
        environment = make_environment()
        self._template = environment.from_string(source)
        # A variable of the same name would take the place of what a template calls, such as `raise_exception`.
        self._free = find_undeclared_variables(environment.parse(source)) - environment.globals.keys()

    def render(self, arguments: dict[str, Any], optional: dict[str, Any], max_chars: int) -> str:
        """The text for the server's `arguments`, and those of the client's `optional` ones that the template knows."""
        known = {name: value for name, value in optional.items() if name in self._free}
        pieces, size = [], 0
        for piece in self._template.generate(known | arguments):
            size += len(piece)
            if size > max_chars:
                raise TemplateError(f"it writes more than {max_chars} characters")
            pieces.append(piece)
        return "".join(pieces)


def _answer(work: Callable[[], str]) -> tuple[bool, str]:
    """Whether rendering worked, and the text or the complaint."""
    try:
        return True, work()
    except TemplateSyntaxError as error:
        return False, f"line {error.lineno}: {error.message}"[:MAX_ERROR_CHARS]
    except TemplateError as error:
        return False, str(error.message)[:MAX_ERROR_CHARS]
    except MemoryError:
        return False, "it uses too much memory"
    except Exception as error:  # a template may raise anything; the answer must come all the same
        return False, f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]


def main() -> None:
    """Serve renderings until the input ends."""
    ignore_ends_of_the_group()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    load_everything()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = source.readline()
    if not first:
        return  # the server ended before it asked for anything
    config = json.loads(first)
    try:
        confine(config["memory_bytes"])
    except OSError:
        sys.exit(NOT_CONFINED)
    template: ClientsTemplate | None = None
    for line in source:

        def render(line: bytes = line) -> str:
            nonlocal template
            with _cpu_limit(config["cpu_seconds"]):
                template = template or ClientsTemplate(config["template"])
                given = json.loads(line)
                return "" if given is None else template.render(**given, max_chars=config["max_chars"])

        success, text = _answer(render)
        data = text.encode("utf-8", "surrogatepass")
        sink.write(ANSWER_HEAD.pack(success, len(data)))
        sink.write(data)
        sink.flush()


if __name__ == "__main__":
    main()
