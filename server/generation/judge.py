"""The model's judgement of a query and a document: the probability of one token against another."""

from __future__ import annotations

from dataclasses import dataclass

# The prompt of Qwen3-Reranker's model card (https://huggingface.co/Qwen/Qwen3-Reranker-0.6B). Each part is tokenized
# separately there, and here too.
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
DEFAULT_INSTRUCT = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True)
class Judge:
    """The two tokens with which the model answers."""

    no: int
    yes: int


def question(instruct: str | None, query: str) -> str:
    """Return the part of the question that all documents of a query share; the document follows it."""
    return f"<Instruct>: {instruct or DEFAULT_INSTRUCT}\n<Query>: {query}\n<Document>: "
