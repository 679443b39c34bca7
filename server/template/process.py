"""The process that renders one chat template until its input ends; `ChatTemplate` starts it and bounds its
resources."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.meta import find_undeclared_variables
from numaserve.server.confined.work import Complaint, Work, serve
from numaserve.server.template.environment import load_everything, make_environment


class ClientsTemplate:
    """A template, and its variables that a client may set: those that neither the template nor the server defines."""

    def __init__(self, source: str) -> None:
        environment = make_environment()
        self._template = environment.from_string(source)
        # A variable of the same name would replace a function that templates call, such as `raise_exception`.
        self._free = find_undeclared_variables(environment.parse(source)) - environment.globals.keys()

    def render(self, arguments: dict[str, Any], optional: dict[str, Any], max_chars: int) -> str:
        """Return the text for the server's `arguments` and those `optional` arguments of the client that the template
        uses."""
        known = {name: value for name, value in optional.items() if name in self._free}
        pieces, size = [], 0
        for piece in self._template.generate(known | arguments):
            size += len(piece)
            if size > max_chars:
                raise TemplateError(f"the output of the template exceeds {max_chars} characters")
            pieces.append(piece)
        return "".join(pieces)


@contextmanager
def _complaints() -> Iterator[None]:
    """Return a context that reports the errors of a template as complaints."""
    try:
        yield
    except TemplateSyntaxError as error:
        raise Complaint(f"line {error.lineno}: {error.message}") from error
    except TemplateError as error:
        raise Complaint(str(error.message)) from error


def _renderer(config: dict[str, Any]) -> Work:
    with _complaints():
        template = ClientsTemplate(config["template"])

    def render(given: dict[str, Any] | None) -> str:
        with _complaints():
            return "" if given is None else template.render(**given, max_chars=config["max_chars"])

    return render


def main() -> None:
    """Serve renderings until the input ends."""
    serve(load_everything, _renderer)


if __name__ == "__main__":
    main()
