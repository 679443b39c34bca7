"""The serve command over fake workers: `python serve_fake.py MODEL_FOLDER [key=value ...] [-- options of the fake]`."""

import os
import sys
import threading
import time
from pathlib import Path

from numaserve.server.cli.main import EXIT_MISTAKE
from numaserve.server.config.serve import load_config
from numaserve.server.service.start import run_service
from numaserve.workers.interface.errors import OperatorError

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


def main() -> int:
    folder, *rest = sys.argv[1:]
    split = rest.index("--") if "--" in rest else len(rest)
    options = dict(word.split("=", 1) for word in rest[:split])
    try:
        config = load_config({"model": folder, "port": 0, "kv_cache_gib": 0.01, **options})
        if "FAKE_BUSY_THREAD" in os.environ:
            threading.Thread(target=time.sleep, args=(3600,)).start()
        run_service(config, (sys.executable, str(FAKE_WORKER), *rest[split + 1 :]))
    except OperatorError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_MISTAKE


if __name__ == "__main__":
    sys.exit(main())
