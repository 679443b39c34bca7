"""Extract records from texts: every answer matches the schema."""

import os

from openai import OpenAI
from pydantic import BaseModel, Field

URL = os.environ.get("NUMASERVE_URL", "http://127.0.0.1:8000")
TEXTS = (
    "Ada Lindgren, 36 years old, repairs bicycles in Malmö.",
    "In Porto lives Rui Alves. He is 51 and bakes bread.",
)


class Person(BaseModel):
    """A person whom a text names."""

    name: str = Field(max_length=40)
    city: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)


client = OpenAI(base_url=f"{URL}/v1", api_key=os.environ.get("NUMASERVE_KEY", "none"))
model = client.models.list().data[0].id

for text in TEXTS:
    answer = client.chat.completions.parse(
        model=model,
        messages=[
            {"role": "system", "content": "Extract the person from the text."},
            {"role": "user", "content": text},
        ],
        response_format=Person,
        temperature=0,
        max_tokens=100,
    )
    print(answer.choices[0].message.parsed.model_dump_json())
