import json
import logging

from numaserve.server.api.access_log import JsonFormatter
from numaserve.server.service.logs import TextFormatter, block


def test_fields_follow_the_message_and_cannot_forge_a_line() -> None:
    record = logging.makeLogRecord({"msg": "request", "levelname": "INFO", "fields": {"id": "a\nb", "status": 200}})
    line = TextFormatter().format(record)
    assert line.endswith("INFO request id='a\\nb' status=200")
    assert "\n" not in line


def test_a_block_is_aligned_lines_for_a_person_and_one_record_for_a_program() -> None:
    record = logging.makeLogRecord({"msg": "serving m", "levelname": "INFO"})
    record.__dict__ |= block([("a", "1"), ("longer", "x\nFAKE LINE")], {"one": 1})
    first, *others = TextFormatter().format(record).splitlines()
    assert first.endswith("INFO serving m")
    assert others == ["  a       1", "  longer  'x\\nFAKE LINE'"]
    line = JsonFormatter().format(record)
    assert len(line.splitlines()) == 1
    assert json.loads(line)["one"] == 1
    assert "rows" not in json.loads(line)
