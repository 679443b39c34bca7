"""The process that decodes images until its input ends; `ImageDecoder` starts it and bounds it.

A piece of work is the base64 text of an image; the result is described in `answer`.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from numaserve.server.confined.work import Work, serve
from numaserve.server.images.answer import Answer, encode
from numaserve.server.images.pixels import from_base64, load, to_tiles
from numaserve.server.images.types import ImageLimits, ImageProblem
from numaserve.workers.interface.images import ImageInput


def _work(config: Mapping[str, Any]) -> Work:
    settings = msgspec.convert(config["settings"], ImageInput)
    limits = msgspec.convert(config["limits"], ImageLimits)

    def work(text: bytes) -> bytes:
        try:
            layout, tiles = to_tiles(from_base64(text), settings, limits)
        except ImageProblem as error:
            return encode(Answer(problem=error.code, message=str(error)), [])
        return encode(Answer(layout.rows, layout.cols), tiles)

    return work


def main() -> None:
    """Serve images until the input ends."""
    serve(load, _work, read=bytes)


if __name__ == "__main__":
    main()
