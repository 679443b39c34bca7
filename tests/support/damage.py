"""Files that are changed where they lie."""

from pathlib import Path


def write_at(path: Path, place: int, data: bytes) -> None:
    """Overwrite a part of a file. To cut a file off and write it again has some file systems wait for the disk."""
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)
