from functools import partial

import pytest
import tokenizers
from numaserve.server.generation.classifier_inputs import cut_pair
from numaserve.server.tokenizer.backend import encode, pair_form
from numaserve.server.tokenizer.types import TokenizationError
from tokenizers import processors

from tests.support.tokenizer_builders import unigram_backend, wordpiece_backend

WORDS = "the quick brown fox jumps over lazy dogs"


def backend_of(kind: str) -> tokenizers.Tokenizer:
    backend = wordpiece_backend() if kind == "bert" else unigram_backend()
    if kind == "roberta":
        backend.add_special_tokens(["<s>", "</s>"])
        end, begin = (("</s>", backend.token_to_id("</s>")), ("<s>", backend.token_to_id("<s>")))
        backend.post_processor = processors.RobertaProcessing(end, begin)
    return backend


@pytest.mark.parametrize("lengths", [(3, 3), (1, 40), (40, 1), (17, 16), (16, 17), (30, 30), (0, 30)])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_pairs_are_joined_and_cut_as_by_the_tokenizers_library(kind: str, lengths: tuple[int, int]) -> None:
    backend = backend_of(kind)
    own = partial(encode, backend, add_special_tokens=False)
    texts = [" ".join((WORDS.split() * 6)[:length]) for length in lengths]
    form = pair_form(backend)
    cut = cut_pair(*map(own, texts), limit=32 - form.added)
    tokens, second = form.joined(*cut)
    backend.enable_truncation(32, strategy="longest_first")
    expected = backend.encode(*texts)
    assert tokens == expected.ids
    assert [int(0 < second <= position) for position in range(len(tokens))] == expected.type_ids
    assert form.typed == (kind == "bert")


def test_texts_that_fit_or_may_not_be_cut_stay_whole() -> None:
    assert cut_pair([1, 2], [3], 3) == ([1, 2], [3])
    assert cut_pair([1, 2], [3], None) == ([1, 2], [3])


def test_a_tokenizer_that_puts_the_second_text_first_is_refused() -> None:
    backend = wordpiece_backend()
    backend.post_processor = processors.TemplateProcessing(single="$A", pair="$B:0 $A:1", special_tokens=[])
    with pytest.raises(TokenizationError, match="does not join two texts"):
        pair_form(backend)
