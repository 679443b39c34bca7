"""The process that decodes long bodies; `process.DecodingProcess` starts it.

Each request is one line of JSON (`Job`), followed by the body. Each answer is a `Decoded` in pieces: the length of each
piece in 8 bytes, then a `Piece` in JSON; a length of 0 ends the pieces. The slices of each opaque text follow in the
same way, and a text without slices ends the answer. MessagePack was rejected: it has no integers beyond 64 bits. The
process ends when its input ends.
"""

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import BinaryIO

import msgspec
from numaserve.server.confined.confinement import confine, ignore_ends_of_the_group
from numaserve.server.http.body.decode import BodyProblem, Decoded, decode, to_data
from numaserve.server.http.body.names_model import NamesModel
from numaserve.server.http.body.need import MAX_CONTAINERS
from numaserve.server.http.body.opaque import TakenOut, slices_of
from numaserve.server.http.body.pieces import Pieces
from numaserve.server.http.explain import Problem
from numaserve.server.http.fields.types import Strict
from numaserve.server.http.fields.unknown_fields import UnknownFields
from numaserve.server.surfaces.anthropic.schema import CountTokensRequest, MessagesRequest
from numaserve.server.surfaces.cohere.schema import CohereEmbedRequest
from numaserve.server.surfaces.ollama.chat_schema import OllamaChatRequest
from numaserve.server.surfaces.ollama.embed_schema import OllamaEmbeddingsRequest, OllamaEmbedRequest
from numaserve.server.surfaces.ollama.generate_schema import OllamaGenerateRequest
from numaserve.server.surfaces.ollama.show_schema import OllamaPullRequest, OllamaShowRequest
from numaserve.server.surfaces.openai.chats.chat_schema import ChatRequest
from numaserve.server.surfaces.openai.completion_schema import CompletionRequest
from numaserve.server.surfaces.openai.embedding_schema import EmbeddingRequest
from numaserve.server.surfaces.openai.responses.schema import InputTokensRequest, ResponsesRequest
from numaserve.server.surfaces.rerank.schema import RerankRequest, ScoreRequest
from numaserve.server.surfaces.sglang.abort_schema import AbortRequest
from numaserve.server.surfaces.sglang.adapters_schema import SGLangLoadLoraRequest, SGLangUnloadLoraRequest
from numaserve.server.surfaces.sglang.generate_schema import SGLangGenerateRequest
from numaserve.server.surfaces.tei.schema import TeiEmbedRequest, TeiEmbedSparseRequest, TeiPredictRequest
from numaserve.server.surfaces.vllm.adapters_schema import LoadLoraRequest, UnloadLoraRequest
from numaserve.server.surfaces.vllm.tokenize_schema import DetokenizeRequest, TokenizeRequest

MODELS: dict[str, type[Strict]] = {
    model.__name__: model
    for model in (
        ChatRequest,
        CompletionRequest,
        EmbeddingRequest,
        RerankRequest,
        ScoreRequest,
        ResponsesRequest,
        InputTokensRequest,
        MessagesRequest,
        CountTokensRequest,
        TokenizeRequest,
        DetokenizeRequest,
        OllamaChatRequest,
        OllamaGenerateRequest,
        OllamaEmbedRequest,
        OllamaEmbeddingsRequest,
        CohereEmbedRequest,
        TeiEmbedRequest,
        TeiEmbedSparseRequest,
        TeiPredictRequest,
        OllamaShowRequest,
        OllamaPullRequest,
        SGLangGenerateRequest,
        AbortRequest,
        LoadLoraRequest,
        UnloadLoraRequest,
        SGLangLoadLoraRequest,
        SGLangUnloadLoraRequest,
        NamesModel,
    )
}
_TOO_MANY = Problem(
    f"The request body has more than {MAX_CONTAINERS} objects and lists, the limit. Shorten the request.", None
)
_MEMORY_BYTES = 4 << 30  # 100 times the longest body


class Job(msgspec.Struct):
    """The head of a request: the kind of body to decode, and the number of its bytes that follow. A body with more than
    `max_text_bytes` without its opaque texts gets an answer without fields."""

    model: str
    refuse_unknown: bool
    length: int
    max_text_bytes: int


def answer(job: Job, data: bytes) -> Decoded:
    """Return the decoded body."""
    unknown = UnknownFields(job.refuse_unknown)
    try:
        body = decode(MODELS[job.model], data, unknown)
    except BodyProblem as error:
        return Decoded(problem=error.problem)
    except MemoryError:
        return Decoded(problem=Problem("Decoding the request body takes too much memory. Shorten the request.", None))
    return Decoded(to_data(body), unknown.names, unknown.count)


def _parts(decoded: Decoded, job: Job) -> tuple[Iterable[bytes], list[str]]:
    """Return the pieces and the opaque texts of an answer, unless it is too large for the server's process."""
    taken = TakenOut()
    data = msgspec.to_builtins(decoded, str_keys=True, enc_hook=taken.encode)
    text_bytes = job.length - sum(map(len, taken.texts))
    pieces = Pieces(data | {"text_bytes": text_bytes})
    if text_bytes > job.max_text_bytes:
        pieces, taken = Pieces(msgspec.to_builtins(Decoded(text_bytes=text_bytes))), TakenOut()
    elif pieces.containers > MAX_CONTAINERS:
        pieces, taken = Pieces(msgspec.to_builtins(Decoded(problem=_TOO_MANY))), TakenOut()
    return map(msgspec.json.encode, pieces), taken.texts


def _send(sink: BinaryIO, parts: Iterable[bytes]) -> None:
    for part in parts:
        sink.write(len(part).to_bytes(8, "little"))
        sink.write(part)
    sink.write(bytes(8))


def _decode_once() -> None:
    """Decode once, so that libraries initialize while files can still be opened."""
    job = Job(ChatRequest.__name__, False, 2, 2)
    list(_parts(answer(job, b"{}"), job)[0])


def main() -> None:
    """Decode bodies until the input ends."""
    ignore_ends_of_the_group()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    _decode_once()
    with suppress(OSError):  # a kernel without seccomp filters; unlike a template, a body is no program
        confine(_MEMORY_BYTES)
    while line := source.readline():
        job = msgspec.json.decode(line, type=Job)
        pieces, texts = _parts(answer(job, source.read(job.length)), job)
        _send(sink, pieces)
        for text in texts:
            _send(sink, slices_of(text))
        _send(sink, ())
        sink.flush()


if __name__ == "__main__":
    main()
