"""`numaserve serve --models` over fake workers: `python serve_fleet.py FILE [key=value ...] [-- the fake's]`."""

import sys
from pathlib import Path

from numaserve.server.cli.main import EXIT_MISTAKE
from numaserve.server.config.serve import load_config
from numaserve.server.gateway.service import run_fleet
from numaserve.workers.interface.errors import OperatorError

MODEL_FAKE = Path(__file__).with_name("model_fake.py")


def main() -> int:
    file, *rest = sys.argv[1:]
    split = rest.index("--") if "--" in rest else len(rest)
    options = dict(word.split("=", 1) for word in rest[:split])
    try:
        config = load_config({"model": file, "port": 0, **options})
        run_fleet(Path(file), config, command=(sys.executable, str(MODEL_FAKE), *rest[split + 1 :]))
    except OperatorError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_MISTAKE


if __name__ == "__main__":
    sys.exit(main())
