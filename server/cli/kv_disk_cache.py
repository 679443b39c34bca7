"""``numaserve cache kv-disk``: the cached prefixes in the folder of a server."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from numaserve.server.cli.tables import stdout_console
from numaserve.server.kv_disk.folder import KvDiskFolder
from numaserve.server.kv_disk.inspection import FolderContents, read_folder, verify_records
from numaserve.server.scheduler.disk.changes import RECORD_KINDS
from numaserve.server.scheduler.disk.directory import Entry
from numaserve.workers.interface.errors import OperatorError
from numaserve.workers.planning.needs import format_bytes
from rich.markup import escape
from rich.table import Table

_MOST_SHOWN = 20  # faults


def kv_disk(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of a server's --kv-disk-path.")],
    *,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read and check every record. The server must be stopped.")
    ] = False,
) -> None:
    """List the cached prefixes on disk, by cache group."""
    contents = read_folder(folder)
    _show(contents, folder)
    if verify and not _verify(folder, contents):
        raise typer.Exit(1)


def _show(contents: FolderContents, folder: Path) -> None:
    table, total = Table("cache group", "records", "size", "last used"), 0
    for kind in RECORD_KINDS:
        groups: dict[str, list[Entry]] = {}
        for entry in contents.entries[kind]:
            groups.setdefault(entry.group, []).append(entry)
        for group, entries in sorted(groups.items()):
            nbytes = len(entries) * sum(contents.record_bytes(kind))
            total += nbytes
            table.add_row(escape(group or "(common)"), f"{len(entries)} {kind}", format_bytes(nbytes), _last(entries))
    console = stdout_console()
    console.print(table)
    ranks = len(contents.header.page_bytes)
    console.print(
        escape(f"{format_bytes(total)} in {folder}, of {contents.header.model} on {ranks} ranks"), soft_wrap=True
    )
    if contents.num_damaged:
        console.print(f"{contents.num_damaged} parts of the index are damaged and were skipped")


def _last(entries: Sequence[Entry]) -> str:
    return datetime.fromtimestamp(max(entry.used_at for entry in entries)).strftime("%Y-%m-%d %H:%M")


def _verify(path: Path, contents: FolderContents) -> bool:
    """Check all records, print the faults, and return whether there are none."""
    # Imported late: the kernels compute the checksums.
    from numaserve.workers.kv_disk.records import problem_of  # noqa: PLC0415

    held = KvDiskFolder(path)  # a server that writes meanwhile would look like damage
    try:
        results = list(verify_records(path, contents, lambda record, digest: problem_of(record, digest, None)))
    except OSError as error:
        raise OperatorError(f"{path}: the records cannot be read ({error.strerror})") from error
    finally:
        held.close()
    faults = [fault for fault in results if fault is not None]
    console = stdout_console()
    for fault in faults[:_MOST_SHOWN]:
        console.print(f"{fault.file}: record {fault.slot} is not as it was written ({fault.problem})")
    console.print(f"{len(results)} records verified, {len(faults)} damaged")
    return not faults
