"""The tables of options: what each command takes, from the commands themselves."""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from numaserve.server.cli.main import whole_command

from tests.documentation.tables import code, table

# How a help text ends that names its default: typer's own way is not shown to tables, "on" for a switch least of all.
_DEFAULT = re.compile(r"^(?P<meaning>.*?)\s*(?:\[default: (?P<value>.*)\]|(?<=[.;]) Default: (?P<words>.*)\.)$")


# The options at the top of docs/options.md.
MAIN = {
    *("--tp", "--host", "--port", "--context-length", "--max-running-requests"),
    *("--quantization", "--kv-cache-dtype", "--api-key-file", "--config"),
}


@dataclass(frozen=True)
class Option:
    """An option of a command."""

    names: tuple[str, ...]
    default: str
    meaning: str


def options(*command: str, only: Container[str] | None = None, beside: Sequence[str] = ()) -> str:
    """The table of what `command` takes: `only` what is named, or what the command `beside` it does not take too."""
    known = _options(beside) if beside else []
    shown = [row for row in _options(command) if row not in known and (only is None or row.names[0] in only)]
    return table(("option", "default", "meaning"), ((code(*row.names), row.default, row.meaning) for row in shown))


def beyond_serve(*command: str) -> str:
    """Return the table of the options of `command`, with a link to `serve` in place of each row that `serve` has too.

    An option that stands for the same on several pages is described once, on the page of `serve`.
    """
    known = _options(("serve",))
    shared = [row.names[0] for row in _options(command) if row in known]
    if not shared:
        return options(*command)
    spelt = " ".join(["numaserve", *command])
    return (
        f"{options(*command, beside=('serve',))}\n"
        f"`{spelt}` also takes these [options of `serve`](options.md): {', '.join(code(each) for each in shared)}.\n"
    )


def commands(*group: str) -> str:
    """The table of the commands of `group`, and of the groups in it."""
    rows = []
    for name, command in _command(*group).commands.items():
        shown = [
            each for each in command.params if not each.opts[0].startswith("--") and not getattr(each, "hidden", False)
        ]
        arguments = [each.metavar or each.name.upper() for each in shown]
        inner = getattr(command, "commands", {})
        spelt = " ".join(["numaserve", *group, name, *arguments])
        rows.append((code(spelt) + (": " + code(*inner) if inner else ""), _sentence(command.help)))
    return table(("command", "what it does"), rows)


def names(*group: str) -> list[str]:
    """The commands of `group`."""
    return list(_command(*group).commands)


def _command(*names: str) -> Any:
    command: Any = whole_command()
    for name in names:
        command = command.commands[name]
    return command


def _options(command: Sequence[str]) -> list[Option]:
    # As --help, --version is said once, of all.
    found = [each for each in _command(*command).params if each.opts[0].startswith("--")]
    return [_option(each) for each in found if each.opts[0] != "--version"]


def _option(parameter: Any) -> Option:
    names = (*parameter.opts, *parameter.secondary_opts)
    found = _DEFAULT.match(parameter.help or "")
    meaning = found["meaning"] if found else parameter.help
    return Option(names, _default(parameter, found), _sentence(meaning))


def _default(parameter: Any, found: re.Match[str] | None) -> str:
    if found and found["words"]:
        return str(found["words"])
    if parameter.required:
        return "must be given"
    value = found["value"] if found else parameter.default
    if str(value) in {"True", "False"}:
        return "on" if str(value) == "True" else "off"
    return "none" if value is None else code(str(getattr(value, "value", value)))


def _sentence(text: str) -> str:
    """The first paragraph on one line, without its full stop."""
    return " ".join(text.split("\n\n", maxsplit=1)[0].split()).rstrip(".")
