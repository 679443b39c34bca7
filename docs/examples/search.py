"""Answer questions about a folder of texts, with the passages that each answer is from."""

import os
import sys
from pathlib import Path

import numpy as np
from openai import OpenAI
from pydantic import BaseModel, ConfigDict, Field

URL = os.environ.get("NUMASERVE_URL", "http://127.0.0.1:8000")
KEY = os.environ.get("NUMASERVE_KEY", "none")
FOUND, READ = 20, 3  # passages that the embeddings find, and that the language model reads

client = OpenAI(base_url=f"{URL}/v1", api_key=KEY)


class Answer(BaseModel):
    """An answer and the numbers of the passages that it is from."""

    model_config = ConfigDict(extra="forbid")  # the schema then allows no other fields

    answer: str = Field(max_length=300)
    sources: list[int] = Field(min_length=1, max_length=READ)


def passages(folder: Path) -> list[tuple[str, str]]:
    """Return the paragraphs of all texts, each with the name of its file."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in {".md", ".txt"})
    parts = [(path.name, part.strip()) for path in files for part in path.read_text().split("\n\n")]
    return [(name, part) for name, part in parts if part]


def embedded(texts: list[str], use: str) -> np.ndarray:
    """Return the embeddings of texts; `use` is query or document: some models have a prompt for each."""
    answer = client.embeddings.create(model="embeddings", input=texts, extra_body={"input_type": use})
    return np.array([item.embedding for item in answer.data])


def ranked(question: str, texts: list[str]) -> list[int]:
    """Return the indices of the best texts, as the reranker orders them."""
    body = {"model": "reranker", "query": question, "documents": texts, "top_n": READ, "truncate": True}
    answer = client.post("/rerank", cast_to=object, body=body)  # a route that the client has no method for
    return [result["index"] for result in answer["results"]]


def answered(question: str, found: list[tuple[str, str]]) -> Answer:
    """Return the answer of the language model, which may name no other passages."""
    numbered = "\n".join(f"[{number}] {text}" for number, (_, text) in enumerate(found, 1))
    schema = Answer.model_json_schema()
    schema["properties"]["sources"]["items"] = {"enum": list(range(1, len(found) + 1))}
    answer = client.chat.completions.create(
        model="answers",
        messages=[
            {"role": "system", "content": f"Answer from these passages, and name their numbers:\n{numbered}"},
            {"role": "user", "content": question},
        ],
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        temperature=0,
    )
    return Answer.model_validate_json(answer.choices[0].message.content)


folder, *questions = sys.argv[1:]
indexed = passages(Path(folder))
index = embedded([text for _, text in indexed], "document")
print(f"{len(indexed)} passages")
for question in questions:
    nearest = np.argsort(-(index @ embedded([question], "query")[0]))[:FOUND]
    candidates = [indexed[at] for at in nearest]
    best = [candidates[at] for at in ranked(question, [text for _, text in candidates])]
    answer = answered(question, best)
    print(f"{question}\n  {answer.answer}")
    for number in dict.fromkeys(answer.sources):
        name, text = best[number - 1]
        print(f"  [{name}] {text[:70]}")
