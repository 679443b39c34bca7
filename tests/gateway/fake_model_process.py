"""A stand-in for a model's server, for `fleet.process`: it answers with what it was asked, or misbehaves.

`model` in its options chooses the behaviour: `ready`, `never` (is never ready), `again` (is ready from its second start
on), `late` (is ready once there is a file next to the notes), `lingers` (is never ready, and ends once there is a file
next to the notes), `mistake` (exits with 2), `fails` (exits with 1), `deaf` (ignores the signal to end), `relapses`
(exits with 2 at its second start), `parent` (has a worker, which ends when there is a file next to the notes),
`knowing` (has what is asked of all), `adapted` (lists an adapter that was loaded later), or `silent` (does not answer
that). Its notes are written to the file `notes` in the options, a line each.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

# It has what it inherits until its end, as workers do.
WORKER = """
import pathlib, sys, time
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
"""
ASKED_OF_ALL = {"/api/tags", "/v1/responses/kept", "/v1/responses/none", "/abort_request"}
BLOB = bytes(range(256)) * 400


class FakeMember:
    def __init__(self, launch: dict) -> None:
        self.name = launch["name"]
        self.how = launch["options"]["model"]
        self.notes = Path(launch["options"]["chat_template"])
        self.listener = socket.socket(fileno=launch["listen_fd"])
        self.lifeline = launch["lifeline_fd"]

    def note(self, text: str) -> None:
        with self.notes.open("a") as file:
            file.write(f"{self.name} {text}\n")

    def notify(self, text: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])

    async def run(self) -> None:
        self.note(f"starts {os.getpid()}")
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, (lambda: None) if self.how == "deaf" else stop.set)
        loop.add_signal_handler(signal.SIGINT, lambda: None)
        loop.add_reader(self.lifeline, lambda: os._exit(3))
        starts = self.notes.read_text().count(f"{self.name} starts")
        if self.how == "parent" and starts == 1:
            worker = [sys.executable, "-c", WORKER, str(self.notes.with_suffix(".end"))]
            subprocess.Popen(worker, pass_fds=[self.lifeline])
        if self.how in {"mistake", "fails"} or (self.how == "relapses" and starts == 2):
            sys.exit(1 if self.how == "fails" else 2)
        server = await asyncio.start_unix_server(self.serve, sock=self.listener)
        while self.how == "late" and not self.notes.with_suffix(".ready").exists():
            await asyncio.sleep(0.01)
        if self.how not in {"never", "lingers"} and (self.how != "again" or starts > 1):
            self.notify("READY=1\nSTATUS=x")
        await stop.wait()
        while self.how == "lingers" and not self.notes.with_suffix(".end").exists():
            await asyncio.sleep(0.01)
        self.notify("STOPPING=1")
        self.note("stops")
        server.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                line, *lines = head.decode("latin-1").split("\r\n")[:-2]
                headers = [each.split(": ", 1) for each in lines]
                length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
                body = await reader.readexactly(length)
                path = line.split(" ")[1]
                if self.how == "silent" and path in ASKED_OF_ALL:
                    self.note(f"asked {path}")
                    await reader.read()
                    self.note("left")
                    break
                await self.answer(path, line, headers, body, writer)
                if ["connection", "close"] in headers:
                    writer.close()
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(self, path: str, line: str, headers: list, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path.startswith("/echo") or path.endswith("load_lora_adapter"):
            told = {"line": line, "headers": headers, "body": body.decode("latin-1"), "by": self.name}
            self.whole(writer, json.dumps(told).encode())
        elif path == "/blob":
            self.begin(writer, "application/octet-stream")
            for start in range(0, len(BLOB), 4099):
                await self.chunk(writer, BLOB[start : start + 4099])
            writer.write(b"0\r\n\r\n")
        elif path == "/endless":
            self.begin(writer, "text/event-stream")
            await self.endless(writer)
        elif path == "/torrent":
            self.begin(writer, "application/octet-stream")
            sent = 0
            while True:
                await asyncio.wait_for(self.chunk(writer, bytes(1 << 16)), 3600)
                sent += 1 << 16
                self.notes.with_suffix(".sent").write_text(str(sent))
        elif path in {"/die", "/die-between", "/die-inside"}:
            if path != "/die":
                self.begin(writer, "text/event-stream")
                await self.chunk(writer, b"data: 1\n\n" if path == "/die-between" else b"data: 1\n\ndata: ")
                await asyncio.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        elif path in ASKED_OF_ALL:
            self.known(path, body, writer)
        elif path == "/v1/models" and self.how == "adapted":
            later = {"id": f"{self.name}-later", "parent": self.name, "root": "/later"}
            self.whole(writer, json.dumps({"data": [{"id": self.name, "parent": None}, later]}).encode())
        elif path == "/metrics":
            self.whole(writer, f'# HELP x X\n# TYPE x gauge\nx{{model_name="{self.name}"}} 1\n'.encode())
        else:
            self.whole(writer, b'{"error": "unknown"}', b"404 Not Found")
        await writer.drain()

    def known(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/api/tags":
            self.whole(writer, json.dumps({"models": [self.name]}).encode())
        elif path == "/abort_request":
            refused = b"{" not in body
            answer = b'{"error": "no body"}' if refused else b'{"aborted": 2}'
            self.whole(writer, answer, b"400 Bad Request" if refused else b"200 OK")
        elif self.how == "knowing" and path.endswith("kept"):
            self.whole(writer, json.dumps({"id": self.name}).encode())
        else:
            self.whole(writer, b'{"error": "unknown"}', b"404 Not Found")

    async def endless(self, writer: asyncio.StreamWriter) -> None:
        try:
            for index in range(1_000_000):
                await self.chunk(writer, f"data: {index}\n\n".encode())
                await asyncio.sleep(0.01)
        except ConnectionError:
            self.note("left")
            raise

    @staticmethod
    def begin(writer: asyncio.StreamWriter, kind: str) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n")
        writer.write(f"Content-Type: {kind}\r\nX-Own: kept\r\nConnection: keep-alive\r\n\r\n".encode())

    @staticmethod
    async def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await writer.drain()

    @staticmethod
    def whole(writer: asyncio.StreamWriter, body: bytes, status: bytes = b"200 OK") -> None:
        head = b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        writer.write(head % (status, len(body)) + body)


if __name__ == "__main__":
    asyncio.run(FakeMember(json.load(sys.stdin)).run())
