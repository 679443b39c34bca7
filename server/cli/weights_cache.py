"""``numaserve cache``: the packed weights that are stored between starts, and the cached prefixes on disk."""

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime

import typer
from numaserve.server.cli.kv_disk_cache import kv_disk
from numaserve.server.cli.tables import stdout_console
from numaserve.server.service.model.deployment import weights_cache_folder
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.planning.needs import format_bytes
from numaserve.workers.weights.cache.errors import CacheError
from numaserve.workers.weights.cache.folder import CacheFile, CacheFolder
from numaserve.workers.weights.cache.format import read_table
from rich.markup import escape
from rich.table import Table

cache = typer.Typer(help="Manage the cache of packed weights, and list cached prefixes.", no_args_is_help=True)
cache.command("kv-disk")(kv_disk)


@cache.command("list")
def list_() -> None:
    """List the packed weights in the cache, most recently used first."""
    table, total = Table("model", "rank", "size", "last used"), 0
    with _folder() as folder:
        if folder is not None:
            for file in sorted(folder.files(), key=lambda each: -each.used_ns):
                table.add_row(*_row(folder, file))
                total += file.nbytes
    console = stdout_console()
    console.print(table)
    console.print(escape(f"{format_bytes(total)} in {weights_cache_folder()}"), soft_wrap=True)


@cache.command()
def clear() -> None:
    """Remove all packed weights. Running servers are not affected."""
    with _folder() as folder:
        if folder is not None:
            for file in folder.files():
                folder.remove(file.name)


@contextlib.contextmanager
def _folder() -> Iterator[CacheFolder | None]:
    """Yield the cache's folder; None if there is none yet."""
    path = weights_cache_folder()
    try:
        if not path.exists():
            yield None
            return
        with CacheFolder(path, create=False) as folder:
            yield folder
    except CacheError as error:
        raise OperatorError(str(error)) from error


def _row(folder: CacheFolder, file: CacheFile) -> tuple[str, str, str, str]:
    rank = file.name.split(".")[1].replace("of", " of ")
    used = datetime.fromtimestamp(file.used_ns / 1e9).strftime("%Y-%m-%d %H:%M")
    return _model(folder, file), rank, format_bytes(file.nbytes), used


def _model(folder: CacheFolder, file: CacheFile) -> str:
    if file.is_part:
        return "(incomplete)"
    fd = folder.open(file.name)
    if fd is None:
        return "(gone)"
    try:
        return escape(read_table(fd).model)
    except (CacheError, OSError) as error:
        return f"(damaged: {error})"
    finally:
        os.close(fd)
