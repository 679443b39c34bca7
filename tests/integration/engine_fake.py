"""An engine over two fake workers, whose process ids it prints: `python engine_fake.py`."""

import asyncio

from harness import Options, make_engine, pids_of
from numaserve.server.metrics.metrics import Metrics


async def main() -> None:
    engine = make_engine(Options(ranks=2), Metrics("fake"))
    await engine.start()
    print(*pids_of(engine), flush=True)
    await asyncio.sleep(3600)


if __name__ == "__main__":
    asyncio.run(main())
