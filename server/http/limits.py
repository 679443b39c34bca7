"""Limits on one request."""

from dataclasses import dataclass

_ANSWERED_TOKENS = 2**18  # a book; their list, or their text where each is a long one, takes some 20 ms to make


@dataclass(frozen=True)
class ApiLimits:
    """The most that one request may ask for."""

    context_length: int  # tokens of prompt and output together
    vocab_size: int  # token ids the model has rows for
    max_sequences: int = 512  # prompts x n of one request; more than the queue holds could never be admitted
    max_body_bytes: int = 32 * 2**20
    body_timeout_seconds: float = 60.0  # for the whole body to arrive
    max_bytes_in_flight: int = 256 * 2**20  # of the bodies of all requests that are not yet answered
    max_headers: int = 100
    request_timeout: float | None = None  # seconds from a request's beginning to the end of its answer
    max_bytes_stored: int = 64 * 2**20  # of responses that are kept for later requests

    @property
    def prompt_tokens(self) -> int:
        """Tokens after which a long prompt is not counted further: what is counted in pieces is off by a few of them,
        and what has twice as many does not fit whatever it is."""
        return 2 * self.context_length

    @property
    def text_tokens(self) -> int:
        """Tokens of the longest text that is tokenized, or turned back into text, for itself."""
        return max(_ANSWERED_TOKENS, self.prompt_tokens)
