"""``numaserve chat [MODEL or URL]``: a conversation in the terminal."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from numaserve.server.cli.config_options import takes_settings
from numaserve.server.cli.conversation import Conversation
from numaserve.server.cli.shared_options import ApiKeyFile, CaFile
from numaserve.server.client.remote import RemoteServer
from numaserve.server.config.file import read_config_file
from numaserve.server.service.process.key_sources import client_key
from numaserve.workers.interface.errors import OperatorError
from rich.console import Console

_TASK = "generate"
_URL = "http://127.0.0.1:8000"
_HELP = "Ctrl-C stops an answer. /reset starts a new conversation. Ctrl-D or /quit exits."
# Characters that a terminal would interpret: all control characters except line feed and tab.
_CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if code not in (9, 10)}


@takes_settings("tp", "context_length", "kv_cache_gib", "state_cache_gib", "threads_per_worker")
def chat(
    target: Annotated[
        str,
        typer.Argument(
            metavar="[MODEL or URL]",
            help=f"Model to serve, or URL of a running server. Default: {_URL}.",
            show_default=False,
        ),
    ] = _URL,
    *,
    options: dict[str, Any],
    system: Annotated[str | None, typer.Option(help="System prompt for the model.")] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Sampling temperature. 0 is greedy. Default: the server's.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum tokens per answer. Default: until the context is full.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Name of a model that URL serves. Default: the first model.")
    ] = None,
    api_key_file: ApiKeyFile = None,
    ca_file: CaFile = None,
    config: Annotated[
        Path | None, typer.Option(help="YAML configuration file or preset for the server of MODEL.")
    ] = None,
) -> None:
    """Chat with a running server, or with a MODEL, which is served for the time of the chat."""
    console = Console(highlight=False, soft_wrap=True)
    fields: dict[str, object] = {"temperature": temperature, "max_tokens": max_tokens, "model": model}
    if model is not None and "://" not in target:
        raise OperatorError(
            f"--model needs a URL of a server with several models, and {target} is a model: leave --model out"
        )
    if ca_file is not None and "://" not in target:
        raise OperatorError(f"--ca-file needs an https URL, and {target} is a model: leave --ca-file out")
    given = {key: value for key, value in options.items() if value is not None}
    with contextlib.ExitStack() as stack:
        if "://" in target:
            remote = _running(target, api_key_file, ca_file, given, config)
        else:
            remote = _own(target, given, config, console, stack)
        sent = {name: value for name, value in fields.items() if value is not None}
        _talk(console, Conversation(remote, sent, system))


def _running(
    url: str, api_key_file: Path | None, ca_file: Path | None, options: dict[str, Any], config: Path | None
) -> RemoteServer:
    if options or config is not None:
        name = next(iter(options), "config").replace("_", "-")
        raise OperatorError(
            f"--{name} applies only to a server that chat starts, and {url} is a running server: "
            f"name a MODEL, or leave out --{name}"
        )
    return RemoteServer(url, client_key(api_key_file), ca_file=ca_file)


def _own(
    model: str, options: dict[str, Any], config: Path | None, console: Console, stack: contextlib.ExitStack
) -> RemoteServer:
    """Start a server of `model` that ends with `stack`."""
    from numaserve.server.cli.own_server import own_server  # noqa: PLC0415 half of what there is

    with console.status(f"Loading {model}"):
        of_file = {} if config is None else read_config_file(config)
        task = of_file.get("task", _TASK)
        if task != _TASK:
            raise OperatorError(
                f"{config}: chat needs the task {_TASK}, and the file sets the task {task}: leave task out, or run"
                " `numaserve serve`"
            )
        # Stated, it makes the server refuse an encoder before it reads a weight.
        return stack.enter_context(own_server(model, of_file | options | {"task": _TASK}))


def _talk(console: Console, conversation: Conversation) -> None:
    """Answer each line of input until the input ends."""
    if sys.stdin.isatty():
        import readline  # noqa: F401, PLC0415 gives `input` a history

        console.print(_HELP, style="dim")
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            if sys.stdin.isatty():
                console.print()  # otherwise the shell continues on the line of the prompt
            return
        except KeyboardInterrupt:
            console.print(f"\n{_HELP}", style="dim")
            continue
        if text == "/quit":
            return
        if text == "/reset":
            conversation.reset()
            console.print("Started a new conversation.", style="dim")
        elif text.startswith("/"):
            console.print(_HELP, style="dim")
        elif text:
            _answer(console, conversation, text)


def _answer(console: Console, conversation: Conversation, text: str) -> None:
    waiting = console.status("")
    was_thought = False

    def show(piece: str, is_thought: bool) -> None:
        nonlocal was_thought
        waiting.stop()
        if was_thought and not is_thought:
            console.print("\n")
        was_thought = is_thought
        console.print(piece.translate(_CONTROLS), end="", markup=False, style="dim italic" if is_thought else None)
        console.file.flush()

    try:
        with waiting:  # nothing to show during a long prompt or the loading of a model
            figures = conversation.ask(text, show)
    except OperatorError as error:
        if not sys.stdin.isatty():
            raise
        console.print(str(error), style="red", markup=False)  # the next question may succeed
        return
    console.print(f"\n{figures}\n", style="dim")
