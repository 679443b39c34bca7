"""The most that caches can find of a workload: as much as one without bounds that all requests come to, one by one."""

from __future__ import annotations

from collections.abc import Iterable

import httpx

from tests.replicas.router_load import Messages
from tests.support.real_server import RealServer


def most_hits(server: RealServer, asked: Iterable[Messages]) -> float:
    """The part of the prompts' tokens, from 0 to 1; of `asked` each is a prompt and its answer.

    `server` tells how they are written as tokens, and how many of these a page of a cache holds.
    """
    page = server.info()["page_size"]
    known: set[tuple[int, ...]] = set()  # beginnings of whole pages
    hits = queries = 0
    with httpx.Client(base_url=server.url) as client:
        for messages in asked:
            prompt = _tokens(client, messages[:-1], for_answer=True)
            # One token at least is computed, which the answer begins with.
            pages = range(page, len(prompt), page)
            hits += max((end for end in pages if prompt[:end] in known), default=0)
            queries += len(prompt)
            whole = _tokens(client, messages, for_answer=False)
            known.update(whole[:end] for end in range(page, len(whole) + 1, page))
    return hits / queries


def _tokens(client: httpx.Client, messages: Messages, *, for_answer: bool) -> tuple[int, ...]:
    body = {"messages": messages, "add_generation_prompt": for_answer}
    return tuple(client.post("/tokenize", json=body).raise_for_status().json()["tokens"])
