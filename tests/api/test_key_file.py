"""The file of API keys: a key a line, with settings behind it."""

from pathlib import Path

import pytest
from numaserve.server.http.auth.key_file import ApiKey, read_keys
from numaserve.server.http.auth.quota import KeyLimits
from numaserve.workers.interface.errors import OperatorError

KEY = "sk-hunter2=="


def written(folder: Path, text: str) -> Path:
    path = folder / "keys"
    path.write_text(text)
    return path


def test_a_line_without_settings_is_a_key_without_limits(tmp_path: Path) -> None:
    assert read_keys(written(tmp_path, "# ours\n\n  one \ntwo\n")) == [ApiKey("one"), ApiKey("two")]


def test_several_keys_may_be_of_one_cache_group(tmp_path: Path) -> None:
    keys = read_keys(written(tmp_path, "one cache-group=team\ntwo cache-group=team\n"))
    assert keys == [ApiKey("one", cache_group="team"), ApiKey("two", cache_group="team")]


def test_settings_follow_a_key_on_its_line_in_any_order(tmp_path: Path) -> None:
    line = f"{KEY}  name=alice weight=0.5 requests-per-minute=60\ttokens-per-minute=100000 concurrent=8 cache-group=lab"
    words = line.split()
    expected = ApiKey(KEY, "alice", 0.5, KeyLimits(60, 100000, 8), cache_group="lab")
    assert read_keys(written(tmp_path, line)) == [expected]
    assert read_keys(written(tmp_path, " ".join([words[0], *reversed(words[1:])]))) == [expected]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{KEY} limit=5", "word 1 after the key is not a setting; settings are name=, weight=, requests-per-minute="),
        (f"{KEY} name=alice hunter3", "word 2 after the key is not a setting"),
        (f"{KEY} # alice", "word 1 after the key"),
        ("name=alice", "write the key first"),
        (f"concurrent=5 {KEY}", "write the key first"),
        (f"{KEY} concurrent=1 concurrent=2", "concurrent= is set twice"),
        (f"{KEY} name=", "name= must be followed by 1 to 64 letters"),
        (f"{KEY} name=alïce", "name= must"),
        (f"{KEY} name={'a' * 65}", "name= must"),
        (f"{KEY} cache-group=", "cache-group= must be followed by 1 to 64 letters"),
        (f"{KEY} cache-group=a,b", "cache-group= must"),
        (f"{KEY} cache-group=a cache-group=b", "cache-group= is set twice"),
        (f"cache-group=a {KEY}", "write the key first"),
        *(
            (f"{KEY} weight={text}", "from 0.01 to 100")
            for text in ("0", "-1", "nan", "inf", "1e1", "101", "0.001", "")
        ),
        *(
            (f"{KEY} {name}={text}", f"{name}= must be followed by a whole number")
            for name in ("requests-per-minute", "tokens-per-minute", "concurrent")
            for text in ("0", "-1", "1.5", "1_000", "9" * 10, "many", "", "\N{ARABIC-INDIC DIGIT FIVE}")
        ),
        ("schlüssel", "ASCII without spaces"),
        ("other", "an earlier line has the same key"),
        (f"{KEY} name=other", "an earlier line has the same name="),
    ],
)
def test_a_mistake_is_told_with_its_line_and_what_to_write(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path, f"# ours\nother name=other\n\n{line}\n")
    with pytest.raises(OperatorError, match=f"line 4 of the API key file {path}: .*{message}") as caught:
        read_keys(path)
    assert "hunter" not in str(caught.value)
