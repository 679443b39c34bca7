"""One table of operations: what each is given, and what float64 makes of it."""

import attention_cases
import cache_cases
import expert_cases
import numpy as np
import pytest
import recurrent_cases
import row_cases
from one_operation import check

CASES = row_cases.CASES | recurrent_cases.CASES | cache_cases.CASES | attention_cases.CASES | expert_cases.CASES


@pytest.mark.parametrize("name", CASES)
def test_an_operation_is_that_of_float64(interpreters: list[str], rng: np.random.Generator, name: str) -> None:
    case = CASES[name](rng)
    for interpreter in interpreters:
        try:
            check(case, interpreter)
        except AssertionError as error:
            error.add_note(f"by {interpreter}")
            raise
