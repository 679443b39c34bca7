"""A server of the tree under test: its options, its files, and its KV events."""

import tempfile
from pathlib import Path

from tests.golden.cases import Served
from tests.golden.event_frames import EventFrames
from tests.support.tree_server import TreeServer


class ServerProcess(TreeServer):
    """A running server with the files that its case names."""

    def __init__(self, served: Served, root: Path, models: Path, bytecode: Path, cpus: set[int]) -> None:
        folder = Path(tempfile.mkdtemp(prefix="ng-"))
        for name, text in served.files.items():
            (folder / name).write_text(text.replace("{models}", str(models)))
            (folder / name).chmod(0o600)
        self.frames: EventFrames | None = None
        super().__init__(root, folder, _options(served, folder, models), bytecode=bytecode, cpus=sorted(cpus))
        if served.events:
            try:
                self.frames = EventFrames(*_endpoints(folder))
            except BaseException:
                self.close()
                raise

    def close(self) -> None:
        """End the server, whatever its state is, and remove its folder."""
        if self.frames is not None:
            self.frames.close()
        super().close()


def _endpoints(folder: Path) -> tuple[str, str]:
    return f"ipc://{folder}/events", f"ipc://{folder}/again"


def _options(served: Served, folder: Path, models: Path) -> list[str]:
    options = [each.format(folder=folder, models=models) for each in served.options]
    if served.events:
        events, again = _endpoints(folder)
        options += ["--kv-events", events, "--kv-events-replay", again, "--kv-events-topic", "kv@golden"]
    if not served.model:
        return options
    model = "demo" if served.model == "demo" else str(models / served.model)
    fixed = ["--weights-cache-gib", "0", "--kv-cache-gib", "0.03", "--threads-per-worker", "1"]
    named = [] if "--served-model-name" in served.options else ["--served-model-name", "golden"]
    return [model, *fixed, "--generation-config", "none", *named, *options]
