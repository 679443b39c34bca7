"""A running sequence, as far as speculation knows it."""

from collections.abc import Sequence as ListOf
from typing import Protocol

from numaserve.server.costs.cost_table import LowRank
from numaserve.workers.interface.protocol import SamplingParams


class Progress(Protocol):
    """The progress of a sequence. Speculation reads it, and never changes it."""

    @property
    def tokens(self) -> list[int]:
        """The prompt and the known output."""

    @property
    def prompt_len(self) -> int:
        """The number of prompt tokens."""

    @property
    def max_tokens(self) -> int:
        """The number of tokens at which the sequence ends."""

    @property
    def next(self) -> int:
        """The next position to compute, if no draft token in flight is accepted."""

    @property
    def drafts(self) -> int:
        """The number of draft tokens in flight."""

    @property
    def pending(self) -> int:
        """The number of samples in flight."""

    @property
    def unknown(self) -> int:
        """The most tokens that plans in flight may bring."""

    @property
    def drafter_read(self) -> int:
        """The number of tokens that the workers' drafter has read."""


class Scope(Protocol):
    """The scope of the texts that a sequence may draft from."""

    @property
    def digest(self) -> str:
        """A text that no other scope has."""


class DecodeRequest(Protocol):
    """The request of a sequence, as far as speculation knows it."""

    @property
    def sampling(self) -> SamplingParams:
        """The sampling parameters."""

    @property
    def scope(self) -> Scope:
        """The scope of the texts that the sequence may draft from."""

    @property
    def adapter(self) -> LowRank | None:
        """The adapter of the model, if any."""

    @property
    def pooling(self) -> object:
        """None unless the sequence has no output."""

    @property
    def drafters(self) -> frozenset[str] | None:
        """The drafters that the sequence allows; None: all."""

    @property
    def prediction(self) -> ListOf[int]:
        """The output that the client expects."""


class Decode(Protocol):
    """A sequence whose next token is planned. The scheduler's sequences are such."""

    @property
    def request_id(self) -> str:
        """The name of the sequence."""

    @property
    def position(self) -> Progress:
        """The progress of the sequence."""

    @property
    def arrival(self) -> int:
        """The number of the sequence."""

    @property
    def request(self) -> DecodeRequest:
        """The request of the sequence."""

    @property
    def careful(self) -> int:
        """More than 0 after a mask was late."""
