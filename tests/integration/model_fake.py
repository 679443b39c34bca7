"""The server of one model over fake workers: `python model_fake.py [options of the fake]`."""

import sys
from pathlib import Path

from numaserve.server.gateway.models.process_main import main

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")

if __name__ == "__main__":
    main((sys.executable, str(FAKE_WORKER), *sys.argv[1:]))
