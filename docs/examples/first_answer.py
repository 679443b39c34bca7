"""Ask a running server one question, as a whole answer and as a stream."""

import os

from openai import OpenAI

URL = os.environ.get("NUMASERVE_URL", "http://127.0.0.1:8000")

client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("NUMASERVE_KEY", "none"))
model = client.models.list().data[0].id
messages = [{"role": "user", "content": "Name the capital of France."}]

answer = client.chat.completions.create(model=model, messages=messages, temperature=0)
print(answer.choices[0].message.content)
print(answer.usage.completion_tokens, "tokens")

for chunk in client.chat.completions.create(model=model, messages=messages, temperature=0, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
