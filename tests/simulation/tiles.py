"""Prompts with tiles of images."""

import random
from dataclasses import replace

from tests.simulation.truth import FIRST, Shown, Wanted

_PLACEHOLDER = FIRST  # stands for an image in a prompt, and for itself in others
_PICTURES = 3


def with_tiles(rng: random.Random, wanted: Wanted, rows: int, longest: int) -> Wanted:
    """The sequence with up to four tiles in its prompt, if it stays below `longest` tokens."""
    room = (longest - 1 - len(wanted.prompt)) // rows
    anywhere = (0, 0, rng.randint(0, len(wanted.prompt)), len(wanted.prompt))
    places = sorted(rng.choice(anywhere) for _ in range(min(room, rng.choice((0, 1, 1, 2, 4)))))
    prompt, tiles = list(wanted.prompt), []
    for number, place in enumerate(places):
        start = place + number * rows
        prompt[start:start] = [_PLACEHOLDER] * rows
        tiles.append(Shown(start, rows, rng.randrange(_PICTURES)))
    return replace(wanted, prompt=tuple(prompt), tiles=tuple(tiles))
