from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.clients.known_clients import BOTH_SERVERS, Client
from tests.clients.runs import run_client


def test_a_server_that_refuses_all_that_a_router_sends_has_not_been_used() -> None:
    def server(name: str, *outcomes: dict[str, float]) -> Any:
        seen = iter([{f"request_outcomes_total {key}": value for key, value in each.items()} for each in outcomes])
        return SimpleNamespace(url=name, model="some", metrics=lambda: next(seen))

    servers = [
        server("answers", {"stop": 1, "invalid": 1}, {"stop": 2, "invalid": 1}),
        server("refuses", {"stop": 1, "invalid": 1}, {"stop": 1, "invalid": 2}),
    ]
    router = Client("router", "router.py", {"router": "1"}, routes=True)
    outcome = run_client(router, [sys.executable, "-c", ""], servers, ["http://127.0.0.1:0"], {"tokenizer": Path("x")})
    assert outcome == {BOTH_SERVERS: ["refuses answered no request"]}
