"""Dynamo's selection core over the KV events of servers; runs where `ai-dynamo-runtime` is installed.

The argument is a JSON list: of each server the addresses of its events and of its replay. Each line of the input is a
list of prompts, as tokens; the answer is a line of JSON: for each prompt how many blocks of it each server has cached,
and which of them would be asked.
"""

import asyncio
import json
import sys

from dynamo.llm import SelectionService

BLOCK_SIZE = 32


async def main() -> None:
    """Read servers' events, and answer until the input ends."""
    service = SelectionService(indexer_threads=2)
    for number, (events, replay) in enumerate(json.loads(sys.argv[1])):
        await service.upsert_worker(
            {
                "worker_id": number,
                "model_name": "model",
                "endpoint": f"http://server-{number}",  # only handed out, never asked
                "block_size": BLOCK_SIZE,
                "kv_events_endpoint": events,
                "replay_endpoint": replay,
            }
        )
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        found = [await about(service, prompt) for prompt in json.loads(line)]
        print("\n" + json.dumps(found), flush=True)
    service.shutdown()


async def about(service: SelectionService, prompt: list[int]) -> dict[str, object]:
    """What is cached of a prompt, and who would be asked."""
    request = {"model_name": "model", "token_ids": prompt}
    overlaps = await service.overlap_scores(request)
    chosen = await service.select(request)
    blocks = {worker["worker_id"]: worker["device_blocks"] for worker in overlaps["workers"]}
    return {"blocks": [blocks[number] for number in sorted(blocks)], "chosen": chosen["worker_id"]}


asyncio.run(main())
