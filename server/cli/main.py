"""The ``numaserve`` command."""

import functools
import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import typer
from numaserve.server.cli.completion import PROGRAM, prepare_completion
from numaserve.server.cli.version_option import with_version
from numaserve.server.common.standard_streams import open_standard_streams
from numaserve.workers.interface.errors import OperatorError

EXIT_MISTAKE = 2  # a mistake that the operator can correct; restarting without a change would not help
EXIT_INTERRUPTED = 130

# The module of each command, and the name of its function or group in it, in the order of the help.
_COMMANDS = {
    "serve": ("serve", "serve"),
    "agent": ("agent", "agent"),
    "chat": ("chat", "chat"),
    "topology": ("topology", "topology"),
    "plan": ("plan", "plan"),
    "doctor": ("doctor", "doctor"),
    "profile": ("profile", "profile"),
    "top": ("top", "top"),
    "ring-stat": ("ring_stat", "ring_stat"),
    "completion": ("completion", "completion"),
    "version": ("version_option", "version"),
    "bench": ("bench", "bench"),
    "cache": ("weights_cache", "cache"),
}


def _with_commands(names: Iterable[str]) -> Any:
    """Return the command with the named subcommands, as a click command."""
    app = typer.Typer(
        name=PROGRAM,
        help="Serve large language models on the NUMA nodes of an Intel or AMD host.",
        add_completion=False,  # typer's options for completion edit start-up files; `numaserve completion` does not
        context_settings={"help_option_names": ["-h", "--help"]},
        # Rich's help cuts long option names off at 80 columns and takes "[default: 64]" for markup.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )
    app.callback()(_nothing)
    for name in names:
        module, attribute = _COMMANDS[name]
        found = getattr(importlib.import_module(f"numaserve.server.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            app.add_typer(found, name=name)
        else:
            app.command(name)(found)
    return with_version(typer.main.get_command(app))


def _nothing() -> None:
    # Without a callback, typer makes the only command of an app the app itself.
    ...


@functools.cache
def whole_command() -> Any:
    """Return the command with all subcommands, as a click command."""
    return _with_commands(_COMMANDS)


def _command_for(given: Sequence[str]) -> Any:
    """Return the command with the subcommands that `given` needs. Modules of other subcommands are not imported."""
    return _with_commands(given[:1]) if given and given[0] in _COMMANDS else whole_command()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit. A mistake of the operator is one line on standard error and exit status 2."""
    open_standard_streams()
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        prepare_completion()
        # Typer's error box has several lines; the message of the exception has one.
        status = _command_for(given).main(args=given or ["--help"], standalone_mode=False, prog_name=PROGRAM)
    except typer.TyperException as error:
        _complain(error.format_message())
        status = EXIT_MISTAKE
    except OperatorError as error:
        _complain(str(error))
        status = EXIT_MISTAKE
    except (typer.Abort, KeyboardInterrupt):
        status = EXIT_INTERRUPTED
    sys.exit(status if isinstance(status, int) else 0)


def _complain(message: str) -> None:
    sys.stderr.write(f"numaserve: {' '.join(message.split())}\n")


if __name__ == "__main__":
    main()
