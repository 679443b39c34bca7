"""Prints the parity of every family on 1, 2 and 3 ranks: `python -m tests.e2e.parity_table`, about a minute."""

import tempfile
from pathlib import Path

from tests.support.demo import HAS_DEMO
from tests.support.parity import DEMO, NAMES, Distance, make_subject


def _share(distance: Distance) -> str:
    return f"{distance.disagreements / distance.positions:.2%}"


def main() -> None:
    print("| model | tp | mean abs Δlogprob | transformers bf16 | ratio | top-1 differs | transformers bf16 | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for name in NAMES:
        if name == DEMO and not HAS_DEMO:
            continue
        with tempfile.TemporaryDirectory() as folder:
            subject = make_subject(name, Path(folder))
            yardstick = subject.yardstick
            for tp in (1, 2, 3):
                found = subject.distance(tp)
                print(
                    f"| {name} | {tp} | {found.mean_delta:.5f} | {yardstick.mean_delta:.5f}"
                    f" | {found.mean_delta / yardstick.mean_delta:.2f} | {_share(found)} | {_share(yardstick)}"
                    f" | {found.disagreements / yardstick.disagreements:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
