"""``python -m tests.documentation.texts N [SEED]``: prints N texts that can reach a user, without their places."""

import random
import sys

from tests.documentation.texts import all_texts


def main() -> None:
    """Print a sample for a reader."""
    count, seed = (*map(int, sys.argv[1:]), 0)[:2]
    for number, each in enumerate(random.Random(seed).sample(list(all_texts()), count), 1):
        print(f"{number}. {each.text}")


if __name__ == "__main__":
    main()
