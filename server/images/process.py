"""The process that decodes images until its input ends; `ImageDecoder` starts it and bounds it."""

from collections.abc import Mapping
from typing import Any

import msgspec
from numaserve.server.confined.work import Work, serve
from numaserve.server.images.exchange import SPLIT, WHOLE, Answer, encode
from numaserve.server.images.pixels import from_base64, load, to_tiles
from numaserve.server.images.types import ImageLimits, ImageProblem
from numaserve.workers.interface.images import ImageInput


def _work(config: Mapping[str, Any]) -> Work:
    settings = msgspec.convert(config["settings"], ImageInput)
    settings_of = {SPLIT: settings, WHOLE: settings.low()}
    limits = msgspec.convert(config["limits"], ImageLimits)

    def work(piece: bytes) -> bytes:
        try:
            layout, tiles = to_tiles(from_base64(piece[1:]), settings_of[piece[:1]], limits)
        except ImageProblem as error:
            return encode(Answer(problem=error.code, message=str(error)), [])
        return encode(Answer(layout.rows, layout.cols, *layout.tile), tiles)

    return work


def main() -> None:
    """Serve images until the input ends."""
    serve(load, _work, read=bytes, in_forks=True)


if __name__ == "__main__":
    main()
