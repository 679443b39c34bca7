"""Kill a worker while it streams an answer, and compare the answer with an undisturbed one."""

import os
import signal

from openai import OpenAI

URL = os.environ.get("NUMASERVE_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("NUMASERVE_KEY", "none")

client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)
request = {
    "model": client.models.list().data[0].id,
    "prompt": "Once upon a time",
    "max_tokens": 100,
    "temperature": 0.8,
    "seed": 7,
}


def workers() -> list[int]:
    """Return the process ids of the workers, by rank."""
    info = client.get(f"{URL}/server_info", cast_to=object)  # the client sends the key to any route
    return [worker["pid"] for worker in info["workers"]]


undisturbed = client.completions.create(**request).choices[0].text

victim = workers()[-1]
pieces = []
for chunk in client.completions.create(**request, stream=True):
    pieces.append(chunk.choices[0].text)
    if len(pieces) == 10:
        os.kill(victim, signal.SIGKILL)
        print(f"killed worker {victim} after 10 chunks")

print("the same answer:", "".join(pieces) == undisturbed)
print("new workers:", victim not in workers())
