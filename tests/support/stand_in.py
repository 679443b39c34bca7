"""A server over an engine whose answers are given, at an address of its own."""

import asyncio
import socket
import ssl
import threading
from dataclasses import replace
from typing import Self

import uvloop
from numaserve.server.answers.reasoning.formats import reasoning_formats
from numaserve.server.answers.tools.formats import tool_formats
from numaserve.server.generation.context import ApiContext
from numaserve.server.generation.token_choice import Sampling
from numaserve.server.service.http import HttpServer

from tests.support.api_fakes import FakeEngine, make_context
from tests.support.byte_tokenizer import ByteTokenizer, fixed

CONTEXT = 8000


class ServedContext:
    """A server over `context` in a thread, at an address of its own; with `tls` it speaks HTTPS."""

    def __init__(self, context: ApiContext, *, tls: ssl.SSLContext | None = None) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http{'' if tls is None else 's'}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._server = HttpServer(context, [self._listener], tls=tls)
        # asyncio's own loop leaves Nagle's algorithm on: the second answer of a connection would wait 40 ms for an ACK.
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._server.run_until_stopped())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._server.stop)
        self._thread.join()
        self._listener.close()


class StandIn(ServedContext):
    """A server that answers what `engine.reply` says, with `DEFAULTS` of sampling. With `keys` it asks for one."""

    DEFAULTS = Sampling(temperature=0.25, top_p=0.75)

    def __init__(self, *keys: str, tls: ssl.SSLContext | None = None) -> None:
        self.engine = FakeEngine()
        self.template = ByteTokenizer(chat_template="tools tool_calls", render=fixed("p"))
        context = replace(
            make_context(self.engine, keys=keys, context_length=CONTEXT),
            tokenizer=self.template,
            sampling_defaults=self.DEFAULTS,
            tool_format=tool_formats()["hermes"],
            reasoning_format=reasoning_formats()["think"],
        )
        super().__init__(context, tls=tls)
