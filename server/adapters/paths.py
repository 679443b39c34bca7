"""The folder below which adapters may be loaded while the server runs."""

from pathlib import Path

from numaserve.server.adapters.errors import AdapterError

_MAX_FILES = 1024  # of an adapter's folder; PEFT writes fewer than ten


def path_below(root: Path | None, given: str) -> Path:
    """Return the real path of the adapter that a client names, which is absolute or relative to `root`.

    The path, and each file in it if it is a folder, must lie below `root` after links are resolved. Blocks; raises
    `AdapterError`. Another path gets the same answer whether it exists or not.
    """
    if root is None:
        raise AdapterError(
            "forbidden",
            "This server loads no LoRA adapters while it runs. The operator can set --lora-root to the folder of the "
            "adapters, and --max-loras to the number that has memory.",
        )
    top = root.resolve()
    outside = AdapterError(
        "forbidden",
        f"The path '{given[:256]}' does not lie in the folder of LoRA adapters (--lora-root). Name a path that is "
        "relative to this folder, without links to other folders.",
    )
    try:
        path = (top / given).resolve()
        if not path.is_relative_to(top) or path == top:
            raise outside
        if not path.exists():
            raise AdapterError("missing", f"No LoRA adapter is at '{given[:256]}' in --lora-root. Check the path.")
        if path.is_dir():
            _check_files(path, top, given)
    except (OSError, RuntimeError, ValueError):  # a NUL, a path that is too long, a loop of links
        raise outside from None
    return path


def _check_files(folder: Path, top: Path, given: str) -> None:
    for count, file in enumerate(folder.iterdir(), start=1):
        if count > _MAX_FILES:
            message = f"'{given[:256]}' has more than {_MAX_FILES} files. Name the folder of a LoRA adapter."
            raise AdapterError("invalid", message)
        if not file.resolve().is_relative_to(top):
            message = (
                f"'{file.name[:256]}' in '{given[:256]}' is a link out of the folder of LoRA adapters (--lora-root). "
                "Copy the file in its place."
            )
            raise AdapterError("forbidden", message)
