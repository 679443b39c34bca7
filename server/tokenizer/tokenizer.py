"""The tokenizer of the server, independent of the file format it was loaded from."""

import os
from collections.abc import Mapping, Sequence
from functools import cached_property

import tokenizers
from numaserve.server.tokenizer.backend import decode, encode, pair_form
from numaserve.server.tokenizer.chat_template import ChatTemplate
from numaserve.server.tokenizer.confined import ConfinedTokenizer
from numaserve.server.tokenizer.doctags import tags
from numaserve.server.tokenizer.steps import all_are_bounded
from numaserve.server.tokenizer.token_bytes import TokenSpelling, spelling_of
from numaserve.server.tokenizer.types import ChatTemplateError, PairForm

_PLAIN_TEXT = "a b"


class Tokenizer:
    """A `tokenizers.Tokenizer`, called so that it releases the interpreter lock, and its chat template.

    Implements `TokenizerProtocol`. Nothing changes after construction and `check_decoder`, so threads need no lock;
    `ChatTemplate` serialises renderings. A tokenizer with unbounded steps runs in another process.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        eos_token_ids: frozenset[int],
        bos_token_id: int | None,
        eos_token_id: int | None,
        chat_template: ChatTemplate | None,
        vocab_size: int | None = None,
        has_types: bool = True,
    ) -> None:
        """Wrap `backend`. Templates know `eos_token_id` as `eos_token`; `vocab_size` defaults to the highest id + 1.
        Unless `has_types` all tokens of a pair have type 0, whatever types `backend` gives them."""
        # Texts come one by one from a fixed number of threads; the library would start one thread per core in addition.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        # A tokenizer.json may still contain the truncation and padding of the model's training.
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        special = {token_id: token.content for token_id, token in added.items() if token.special}
        self.special_token_ids = frozenset(special)
        self.hidden_token_ids = self.special_token_ids - tags(special)
        self._backend = backend
        self._has_types = has_types
        self._confined = None if all_are_bounded(backend) else ConfinedTokenizer(backend.to_str())
        self.decode(self.encode(_PLAIN_TEXT))  # refuse a file now that fails on every text
        self.vocab_size = vocab_size or 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=0)
        self.eos_token_ids = eos_token_ids
        self.bos_token_id = bos_token_id
        self.chat_template = "" if chat_template is None else chat_template.source
        # Hugging Face passes `documents` as None, and templates test `is not none`. A token that the model lacks stays
        # undefined, because None would be rendered as text.
        self._template_constants: dict[str, object] = {"documents": None}
        if bos_token_id is not None:
            self._template_constants["bos_token"] = self.token_text(bos_token_id)
        if eos_token_id is not None:
            self._template_constants["eos_token"] = self.token_text(eos_token_id)
        self._chat_template = chat_template

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of `text`; special tokens written out in `text` are recognised.

        Raises `TokenizationError` if the library fails or exceeds its limits, and `TokenizerUnavailable`.
        """
        if self._confined is not None:
            return self._confined.encode(text, add_special_tokens=add_special_tokens)
        return encode(self._backend, text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of `token_ids`; ids outside the vocabulary add nothing. Raises as `encode` does."""
        if skip_special_tokens and self.hidden_token_ids != self.special_token_ids:
            token_ids = [each for each in token_ids if each not in self.hidden_token_ids]
            skip_special_tokens = False
        if self._confined is not None:
            return self._confined.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return decode(self._backend, token_ids, skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """Return the vocabulary's spelling of the token; empty for an id outside the vocabulary."""
        return self._backend.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that the token adds to a text; empty for an id outside the vocabulary. Raises
        `TokenizerError` as `check_decoder` does."""
        return self._bytes_of(self.token_text(token_id))

    def pair_form(self) -> PairForm:
        """Return how two texts are joined. Raises `TokenizationError` for a tokenizer that joins them otherwise than by
        tokens around both, or gives types otherwise than by text."""
        return pair_form(self._backend, has_types=self._has_types)

    @cached_property
    def _bytes_of(self) -> TokenSpelling:
        return spelling_of(self._backend)

    def definition(self) -> str:
        """Return the tokenizer as the text of a tokenizer.json. A large one takes half a second and holds the GIL."""
        return self._backend.to_str()

    def check_decoder(self) -> None:
        """Raise `TokenizerError` if the decoder does not say which bytes a token adds to a text. An encoder, which
        generates no token, does without."""
        _ = self._bytes_of

    def check_chat_template(self) -> None:
        """Raise `ChatTemplateError` if the template does not compile; do nothing without a template."""
        if self._chat_template is not None:
            self._chat_template.render(None)

    def render_chat(
        self,
        messages: list[dict[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] = (),
        add_generation_prompt: bool = True,
        arguments: Mapping[str, object] | None = None,
    ) -> str:
        """Return the conversation as written by the model's template, to be encoded without adding special tokens.

        `arguments` are values of template variables; variables that the template lacks, or that the server sets, have
        no effect. A call may take up to the template's time limit, so it must not run in the event loop's thread.
        Raises `ChatTemplateError` if there is no template, the template refuses the messages, or a limit is exceeded.
        """
        if self._chat_template is None:
            raise ChatTemplateError("this model has no chat template; use /v1/completions with your own prompt")
        return self._chat_template.render(
            {
                **self._template_constants,
                "messages": messages,
                "tools": list(tools) or None,  # templates test `is not none`
                "add_generation_prompt": add_generation_prompt,
            },
            arguments,
        )

    def close(self) -> None:
        """End the processes for texts and templates; their unfinished work fails."""
        if self._confined is not None:
            self._confined.close()
        if self._chat_template is not None:
            self._chat_template.close()
