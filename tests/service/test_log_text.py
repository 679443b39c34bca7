import logging

from numaserve.server.service.logs import TextFormatter


def test_fields_follow_the_message_and_cannot_forge_a_line() -> None:
    record = logging.makeLogRecord({"msg": "request", "levelname": "INFO", "fields": {"id": "a\nb", "status": 200}})
    line = TextFormatter().format(record)
    assert line.endswith("INFO request id='a\\nb' status=200")
    assert "\n" not in line
