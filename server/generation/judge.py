"""The model's judgement of a query and a document: the probability of one token against another."""

from __future__ import annotations

import math
from dataclasses import dataclass

# As the card of Qwen3-Reranker (https://huggingface.co/Qwen/Qwen3-Reranker-0.6B) has the model asked. Each part is
# tokenized for itself there, and so are these.
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
DEFAULT_INSTRUCT = "Given a web search query, retrieve relevant passages that answer the query"


@dataclass(frozen=True)
class Judge:
    """The tokens with which the model answers."""

    no: int
    yes: int


def question(instruct: str | None, query: str) -> str:
    """The part of the question that all documents of a query share; the document comes behind it."""
    return f"<Instruct>: {instruct or DEFAULT_INSTRUCT}\n<Query>: {query}\n<Document>: "


def probability(no: float, yes: float) -> float:
    """The probability of yes where one of both has to be said, from their log-probabilities."""
    smaller = math.exp(-abs(yes - no))  # never more than 1: nothing overflows
    return (1.0 if yes >= no else smaller) / (1.0 + smaller)
