"""llama.cpp's own files, from the source distribution of llama-cpp-python."""

import subprocess
import tarfile
import venv
from pathlib import Path

PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
_INSIDE = "/vendor/llama.cpp/"


def llama_cpp_files(place: Path, *folders: str) -> Path:
    """Return a folder in `place` with these `folders` of llama.cpp. pip downloads the distribution once, in an
    environment of its own."""
    found = place / f"llama.cpp-{VERSION}"
    if not found.exists():
        download = place / "download"
        if not any(download.glob("*.tar.gz")):
            _download(place / "environment", download)
        _unpack(next(download.glob("*.tar.gz")), folders, found)
    return found


def _download(environment: Path, target: Path) -> None:
    venv.create(environment, with_pip=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-binary", ":all:", "--dest", str(target)]
    subprocess.run([*pip, "download", *options, f"{PACKAGE}=={VERSION}"], check=True)


def _unpack(archive: Path, folders: tuple[str, ...], target: Path) -> None:
    unfinished = target.with_name("unfinished")
    with tarfile.open(archive) as files:
        for member in files:
            inside = member.name.partition(_INSIDE)[2]
            if inside.startswith(folders) and member.isfile() and (content := files.extractfile(member)):
                path = unfinished / inside
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
    unfinished.rename(target)
