"""Nothing that comes from a client, a checkpoint or another process is ever code, and no request is passed on."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path for folder in ("server", "workers", "kernels", "shm_comm", "configs") for path in (ROOT / folder).rglob("*.py")
)
# What turns bytes into objects of any class, or into code.
RUNNING = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "code", "codeop", "runpy"}
RUNNING_NAMES = {"eval", "exec", "compile", "__import__"}
RUNNING_ATTRIBUTES = {
    *(
        "os.system",
        "os.popen",
        "torch.load",
        "np.load",
        "numpy.load",
        "yaml.load",
        "yaml.unsafe_load",
        "yaml.full_load",
    ),
    *("subprocess.getoutput", "subprocess.getstatusoutput"),
}
LAST_WORDS = {name.rpartition(".")[2] for name in RUNNING_ATTRIBUTES}  # to unparse few expressions, not all
# What starts an interpreter, which would look for modules in the working folder: see `module_command`.
STARTS_PYTHON = {"workers/interface/python_process.py"}
RUNNING_KEYWORDS = {"shell", "allow_pickle", "trust_remote_code"}
# Who names TCP to ZeroMQ: for KV events, which are published where the operator says, and nothing is read from there.
# Between hosts there are links with keys, which one module makes.
HOST_LINKS = "workers/interface/host_links.py"
PUBLISHERS = {"server/config/serve.py", "server/kv_events/listening.py", "server/service/kv_feed.py"}
NAMES_A_SHELL = "server/cli/completion.py"  # to typer, which has a script for it
# What asks other machines, and who may: commands that are given a server, the gateway of several
# models, which asks theirs, and the fetching of a model.
ASKING = {"aiohttp", "httpx", "requests", "urllib.request", "http.client", "ftplib", "huggingface_hub", "socketserver"}
ASKING |= {"opentelemetry.exporter.otlp.proto.http.trace_exporter"}
ASKERS = (
    *("server/loadtest/", "server/client/remote.py", "server/gateway/", "server/tracing/", "workers/weights/hub.py"),
    "server/client/unix_session.py",  # of this host alone
)


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def runs(tree: ast.AST) -> Iterator[str]:
    """What in a module would run what it is given."""
    for name in imported(tree):
        if name.partition(".")[0] in RUNNING or name in RUNNING_ATTRIBUTES:
            yield name
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in RUNNING_NAMES:
            yield node.id
        elif isinstance(node, ast.Attribute) and node.attr in LAST_WORDS and ast.unparse(node) in RUNNING_ATTRIBUTES:
            yield ast.unparse(node)
        elif isinstance(node, ast.keyword) and node.arg in RUNNING_KEYWORDS:
            yield node.arg
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "tcp://" in node.value:
            yield "tcp://"  # between processes there are sockets of the file system only


@pytest.mark.parametrize(
    "source",
    [
        *(
            "import pickle",
            "from pickle import loads",
            "import marshal as m",
            "eval('1')",
            "f = exec",
            "os.system('x')",
        ),
        *("torch.load(f)", "from torch import load", "np.load(f, allow_pickle=True)", "yaml.load(x)"),
        *("run('x', shell=True)", "AutoConfig.from_pretrained(x, trust_remote_code=True)", "bind('tcp://*:1')"),
    ],
)
def test_what_runs_is_recognised(source: str) -> None:
    assert [*runs(ast.parse(source))]


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.AST]:
    """Return the syntax trees of all modules, by their paths."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in FILES}


def test_no_module_runs_what_it_is_given(trees: dict[str, ast.AST]) -> None:
    found = {path: [*runs(tree)] for path, tree in trees.items()}
    assert len(found) > 300
    running = {path: {*names} for path, names in found.items() if names}
    assert running == {path: {"tcp://"} for path in PUBLISHERS | {HOST_LINKS}} | {NAMES_A_SHELL: {"shell"}}


def test_every_link_between_hosts_has_keys(trees: dict[str, ast.AST]) -> None:
    """A function gives a socket its keys before it makes an address."""
    functions = [each for each in ast.walk(trees[HOST_LINKS]) if isinstance(each, ast.FunctionDef)]
    opening = {each.name: ast.unparse(each) for each in functions if "_endpoint(socket" in ast.unparse(each)}
    del opening["_endpoint"]
    assert opening.keys() == {"listen", "connect"}
    for text in opening.values():
        assert text.index("socket.curve_secretkey = ") < text.index("_endpoint(socket")


def test_hosts_compare_no_clocks(trees: dict[str, ast.AST]) -> None:
    """The clocks of two hosts may be minutes apart: agents and groups measure durations."""
    shared = ("server/agent/", "server/supervisor/", "server/dispatch/", "workers/process/")
    read = {
        (path, ast.unparse(node))
        for path, tree in trees.items()
        if path.startswith(shared)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
    }
    assert ("server/supervisor/error_pipe.py", "time.monotonic") in read
    assert not {each for each in read if each[1] in {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow"}}


def test_interpreters_are_started_in_one_place(trees: dict[str, ast.AST]) -> None:
    # To unparse few modules, not all.
    mentioning = {path for path in trees if "executable" in (ROOT / path).read_text()}
    named = {path for path in mentioning if "sys.executable" in ast.unparse(trees[path])}
    assert named == STARTS_PYTHON


def test_only_commands_that_are_told_to_ask_other_machines(trees: dict[str, ast.AST]) -> None:
    asking = {
        path
        for path, tree in trees.items()
        if any(name in ASKING or name.partition(".")[0] in ASKING for name in imported(tree))
    }
    assert asking
    assert not [path for path in asking if not path.startswith(ASKERS)]
