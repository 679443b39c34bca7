"""``python -m tests.documentation.texts``: writes every text that can reach a user to build/texts.txt."""

import argparse
import random

from tests.documentation.parts import ROOT
from tests.documentation.texts import all_texts
from tests.documentation.texts.rules import broken_rules

_FILE = ROOT / "build" / "texts.txt"


def main() -> None:
    """Write the texts; print those that break a rule, or a sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--broken", action="store_true", help="print the texts that break a rule")
    parser.add_argument("--draw", type=int, metavar="N", help="print N texts, drawn by --seed, without their places")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    texts = list(all_texts())
    _FILE.parent.mkdir(exist_ok=True)
    _FILE.write_text("".join(f"{each.place}\t{each.text}\n" for each in texts))
    print(f"{len(texts)} texts were written to {_FILE.relative_to(ROOT)}")
    if options.broken:
        for each in texts:
            for rule in broken_rules(each.text):
                print(f"{each.place}: {rule}\n    {each.text}")
    if options.draw:
        for number, each in enumerate(random.Random(options.seed).sample(texts, options.draw), 1):
            print(f"{number}. {each.text}")


if __name__ == "__main__":
    main()
