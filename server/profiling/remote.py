"""The requests to a server that a profile needs."""

from collections.abc import Iterator
from typing import Any

import msgspec
from numaserve.server.client.remote import RemoteServer
from numaserve.server.config.tasks import Task
from numaserve.server.profiling.figures import RankFigures


class ModelInfo(msgspec.Struct):
    """The fields of `GET /get_model_info` that a profile needs."""

    served_model_name: str
    vocab_size: int
    max_model_len: int
    task: Task


class _Text(msgspec.Struct):
    prompt: str


class _Profiled(msgspec.Struct):
    profile: list[RankFigures]


class Remote(RemoteServer):
    """A running numaserve that reports the cost of its steps."""

    def model(self) -> ModelInfo:
        """Return the served model."""
        return self.get("/get_model_info", ModelInfo)

    def profile(self, *, ceilings: bool = False) -> list[RankFigures]:
        """Return each rank's totals, with the ceilings of its node if they can be measured: not while requests run."""
        with self.request("GET", f"/server_info?profile=1{'&ceilings=1' if ceilings else ''}") as response:
            if not ceilings or response.status != 409:
                return self.decoded(response, _Profiled).profile
        return self.profile()

    def answer(self, path: str, body: dict[str, Any]) -> None:
        """Let the server answer a request."""
        with self.request("POST", path, body) as response:
            self.check(response)
            response.read()

    def text_of(self, model: str, tokens: list[int]) -> str:
        """Return the text of token ids."""
        with self.request("POST", "/detokenize", {"model": model, "tokens": tokens}) as response:
            self.check(response)
            return self.decoded(response, _Text).prompt

    def complete(self, model: str, prompt: list[int], output_tokens: int) -> Iterator[None]:
        """Stream a greedy completion of exactly `output_tokens` tokens; yields at every piece of it."""
        body = {"model": model, "prompt": prompt, "max_tokens": output_tokens, "temperature": 0, "ignore_eos": True}
        for _ in self.events("/v1/completions", body | {"stream": True}):
            yield
