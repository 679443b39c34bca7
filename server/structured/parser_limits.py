"""What llguidance may spend: the same in a trial and in service, so that one foretells the other."""

from llguidance import LLMatcher, LLParserLimits, LLTokenizer


def new_matcher(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """`grammar`, in llguidance's form, compiled. What is wrong with it is in the matcher's `get_error`."""
    limits = LLParserLimits(
        initial_lexer_fuel=1_000_000,  # some tens of milliseconds
        step_lexer_fuel=100_000,  # some milliseconds of one mask
        step_max_items=25_000,  # about a millisecond of one mask
        # Some 200 bytes each, for each sequence. A string with a `maxLength` takes some for each character.
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,  # the others print the whole grammar and the answer
    )
    return LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
