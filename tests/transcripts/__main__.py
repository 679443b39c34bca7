"""`python -m tests.transcripts --record [NAME …]`: record the answers of all transcripts again, or of some."""

import argparse
import sys

from tests.transcripts.form import FILES
from tests.transcripts.replay import Clients


def main() -> int:
    """Record, or name the files whose answers are others; the exit status is 1 where there are such."""
    parser = argparse.ArgumentParser(prog="python -m tests.transcripts", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write the files")
    parser.add_argument("names", nargs="*", help="names of files without their suffix (default: all)")
    given = parser.parse_args()
    changed = 0
    with Clients() as clients:
        for file in FILES:
            if given.names and file.stem not in given.names:
                continue
            text = clients.replayed(file)
            if text != file.read_text():
                changed += 1
                print(f"{file.stem}: {'written' if given.record else 'other answers'}")
                if given.record:
                    file.write_text(text)
    return int(changed > 0 and not given.record)


if __name__ == "__main__":
    sys.exit(main())
