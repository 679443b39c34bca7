"""Limits on one request."""

from dataclasses import dataclass

_ANSWERED_TOKENS = 2**18  # a book; its token list, or its text if each token is long, takes some 20 ms to encode


@dataclass(frozen=True)
class ApiLimits:
    """The maximum that one request may ask for."""

    context_length: int  # tokens of prompt and output together
    vocab_size: int  # number of token ids that the model has rows for
    max_sequences: int = 512  # prompts x n of one request; more than the queue holds could never be admitted
    max_body_bytes: int = 32 * 2**20
    body_timeout_seconds: float = 60.0  # until the whole body must have arrived
    max_bytes_in_flight: int = 256 * 2**20  # of the bodies of all unanswered requests
    max_headers: int = 100
    request_timeout: float | None = None  # seconds from the beginning of a request to the end of its answer
    max_bytes_stored: int = 64 * 2**20  # of stored responses for later requests
    max_answer_bytes: int = 2**30  # of JSON; 8192 embeddings of 4096 numbers take at most 840 MB
    max_bytes_unread: int = 256 * 2**20  # of the vectors and long texts of all answers that wait for their clients

    @property
    def prompt_tokens(self) -> int:
        """The number of tokens after which the count of a long prompt stops.

        A count in pieces is off by a few tokens; a prompt with twice the context length does not fit in any case.
        """
        return 2 * self.context_length

    @property
    def text_tokens(self) -> int:
        """The tokens of the longest single text that is tokenized or detokenized."""
        return max(_ANSWERED_TOKENS, self.prompt_tokens)
