"""The names of formats in options."""

import pytest
from numaserve.server.answers.formats import reasoning_format, tool_format
from numaserve.workers.interface.errors import OperatorError


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("llama3", r"'llama3' is not a known format \(similar names: llama3_json\): name a format that docs/api.md"),
        (
            "zzz",
            "'zzz' is not a known format: name a format that docs/api.md lists, or `none`, or leave the option out",
        ),
    ],
)
def test_an_unknown_format_is_answered_with_those_named_like_it(given: str, said: str) -> None:
    with pytest.raises(OperatorError, match=f"--tool-call-parser {said}") as caught:
        tool_format(given, "")
    assert "hermes" not in str(caught.value)
    with pytest.raises(OperatorError, match=f"--reasoning-parser '{given}' is not a known format"):
        reasoning_format(given, "")
