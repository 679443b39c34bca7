"""The ``numaserve`` command."""

import functools
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import typer
from numaserve.server.cli.bench import bench
from numaserve.server.cli.chat import chat
from numaserve.server.cli.completion import PROGRAM, completion, prepare_completion
from numaserve.server.cli.plan import plan
from numaserve.server.cli.profile import profile
from numaserve.server.cli.ring_stat import ring_stat
from numaserve.server.cli.serve import serve
from numaserve.server.cli.top import top
from numaserve.server.cli.topology import topology
from numaserve.server.cli.version_option import version_text, with_version
from numaserve.server.cli.weights_cache import cache
from numaserve.server.standard_streams import open_standard_streams
from numaserve.workers.errors import OperatorError

EXIT_MISTAKE = 2  # something the operator can mend; starting again without a change would not help
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name=PROGRAM,
    help="Serve large language models on the NUMA nodes of a Xeon host.",
    add_completion=False,  # options of the bare command, one of which edits start-up files: there is a command instead
    context_settings={"help_option_names": ["-h", "--help"]},
    # Rich's help cuts long option names off at 80 columns and takes "[default: 64]" for markup.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(chat)
app.command()(topology)
app.command()(plan)
app.command()(profile)
app.command()(top)
app.command("ring-stat")(ring_stat)
app.add_typer(bench, name="bench")
app.add_typer(cache, name="cache")
app.command()(completion)


@app.command()
def version() -> None:
    """Print the version, the commit of the version, and the instruction set that the kernels would use."""
    typer.echo(version_text())


@functools.cache
def whole_command() -> Any:
    """Return the command with all those below it, as a click command."""
    return with_version(typer.main.get_command(app))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command and exit. A mistake of the operator is one line on standard error and exit status 2."""
    open_standard_streams()
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        prepare_completion()
        # Typer's own error box is several lines; as an exception its message is one.
        status = whole_command().main(args=given or ["--help"], standalone_mode=False, prog_name=PROGRAM)
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
