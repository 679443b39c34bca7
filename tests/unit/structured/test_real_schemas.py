"""Schemas as applications have them: each is compiled, and whatever its masks allow is valid by it."""

import json
import random

import jsonschema_rs
import pytest
from llguidance import LLTokenizer
from numaserve.server.structured.matchers.matcher import GrammarMatcher
from numaserve.server.structured.parser_limits import new_matcher
from numaserve.server.structured.translate import to_llguidance
from numaserve.server.structured.types import Constraint, Limits
from numaserve.server.structured.vocabulary import Vocabulary
from numaserve.server.tokenizer import Tokenizer

from tests.support.masks import walk
from tests.support.schemas import SCHEMAS

_WALKS = 5
_MOST_TOKENS = 600


def test_there_are_fifty() -> None:
    assert len(SCHEMAS) == 50


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_random_walk_through_the_masks_gives_a_valid_document(
    name: str, tokenizer: Tokenizer, loaded: LLTokenizer, vocabulary: Vocabulary
) -> None:
    text = json.dumps(SCHEMAS[name])
    compiled = new_matcher(loaded, to_llguidance(Constraint("json_schema", text), vocabulary.special, Limits()))
    assert not compiled.get_error()
    validator = jsonschema_rs.validator_for(SCHEMAS[name], validate_formats=True)
    ended = 0
    for seed in range(_WALKS):
        matcher = GrammarMatcher(compiled.deep_copy(), loaded.vocab_size, tokenizer.eos_token_ids)
        document = walk(matcher, tokenizer, random.Random(seed), most=_MOST_TOKENS)
        if document is not None:
            ended += 1
            assert not list(validator.iter_errors(json.loads(document))), document
    assert ended
