"""The tokenizer that the front end uses, whatever file it was read from."""

import os
from collections.abc import Mapping, Sequence

import tokenizers
from numaserve.server.tokenizer.backend import decode, encode
from numaserve.server.tokenizer.chat_template import ChatTemplate
from numaserve.server.tokenizer.confined import ConfinedTokenizer
from numaserve.server.tokenizer.steps import all_are_bounded
from numaserve.server.tokenizer.token_bytes import spelling_of
from numaserve.server.tokenizer.types import ChatTemplateError

_PLAIN_TEXT = "a b"


class Tokenizer:
    """A `tokenizers.Tokenizer`, used so that it does not hold the interpreter lock, and its chat template.

    Implements `TokenizerProtocol`. Nothing changes after construction, so threads need no lock, except for
    rendering, which `ChatTemplate` serialises. A tokenizer with steps that nothing bounds works in another process.
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
    ) -> None:
        """`eos_token_id` is the one that templates know as `eos_token`; `vocab_size` defaults to the highest id + 1."""
        # Texts come one by one, from threads whose number is chosen; the library would start one for each core besides.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        # A tokenizer.json may carry the cut and the padding of the model's training.
        backend.no_truncation()
        backend.no_padding()
        added = backend.get_added_tokens_decoder()
        self._backend = backend
        self._bytes_of = spelling_of(backend)
        self._confined = None if all_are_bounded(backend) else ConfinedTokenizer(backend.to_str())
        self.decode(self.encode(_PLAIN_TEXT))  # a file that fails on every text is refused now
        self.vocab_size = vocab_size or 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=0)
        self.eos_token_ids = eos_token_ids
        self.bos_token_id = bos_token_id
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.chat_template = "" if chat_template is None else chat_template.source
        # HF gives `documents` as None, and templates ask `is not none`. A token that the model lacks is left undefined,
        # as None would be written out.
        self._template_constants: dict[str, object] = {"documents": None}
        if bos_token_id is not None:
            self._template_constants["bos_token"] = self.token_text(bos_token_id)
        if eos_token_id is not None:
            self._template_constants["eos_token"] = self.token_text(eos_token_id)
        self._chat_template = chat_template

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; special tokens written out in `text` are recognised. Raises `TokenizationError` where
        the library fails on it or takes more than it may, and `TokenizerUnavailable`."""
        if self._confined is not None:
            return self._confined.encode(text, add_special_tokens=add_special_tokens)
        return encode(self._backend, text, add_special_tokens)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`; ids outside the vocabulary add nothing. Raises as `encode` does."""
        if self._confined is not None:
            return self._confined.decode(token_ids, skip_special_tokens=skip_special_tokens)
        return decode(self._backend, token_ids, skip_special_tokens)

    def token_text(self, token_id: int) -> str:
        """The vocabulary's spelling of the token; empty for an id outside the vocabulary."""
        return self._backend.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes the token adds to a text; empty for an id outside the vocabulary."""
        return self._bytes_of(self.token_text(token_id))

    def definition(self) -> str:
        """The tokenizer as the text of a tokenizer.json. It takes half a second for a large one, with the GIL held."""
        return self._backend.to_str()

    def check_chat_template(self) -> None:
        """Raise `ChatTemplateError` when the template does not compile; nothing is done where there is none."""
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
        """The conversation as the model's own template writes it, to be encoded without adding special tokens.

        `arguments` are values of variables of the template; those that it does not have, and those that the server
        sets, change nothing. May take as long as the template's time limit: not for an event loop's thread. Raises
        `ChatTemplateError` when there is no template, and when it refuses the messages or goes past a limit.
        """
        if self._chat_template is None:
            raise ChatTemplateError("this model has no chat template; use /v1/completions with your own prompt")
        return self._chat_template.render(
            {
                **self._template_constants,
                "messages": messages,
                "tools": list(tools) or None,  # templates ask `is not none`
                "add_generation_prompt": add_generation_prompt,
            },
            arguments,
        )

    def close(self) -> None:
        """End the processes for texts and templates; work that they have begun fails."""
        if self._confined is not None:
            self._confined.close()
        if self._chat_template is not None:
            self._chat_template.close()
