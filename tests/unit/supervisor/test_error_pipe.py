"""What a worker writes to its standard error, in the front end's log."""

import asyncio
import logging
import os
import subprocess
import sys
from typing import Any

import pytest
from numaserve.server.supervisor.error_pipe import BURST_LINES, MAX_LINE_BYTES, ErrorPipe
from numaserve.server.supervisor.process import WorkerProcess

SET_UP = "from numaserve.workers.interface.log_lines import set_up_logging; set_up_logging()\n"


@pytest.fixture(autouse=True)
def _every_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "numaserve.worker")


def run_worker(program: str) -> int:
    """Run it as rank 3; its process id."""

    async def scenario() -> int:
        read_end, write_end = os.pipe()
        command = [sys.executable, "-c", program]
        process = WorkerProcess(3, command, "ipc://x", lifeline_fd=read_end, inherited_fds=[], on_exit=lambda _: None)
        os.close(read_end)
        await process.exited
        os.close(write_end)
        return process.pid

    return asyncio.run(scenario())


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return dict(record.__dict__["fields"])


def test_records_keep_their_level_and_say_whose_they_are(caplog: pytest.LogCaptureFixture) -> None:
    pid = run_worker(SET_UP + "import logging; logging.getLogger('some.where').error('no %s\\nat all', 'disk')")
    (record,) = caplog.records
    assert (record.levelno, record.getMessage()) == (logging.ERROR, "no disk\nat all")
    assert fields(record) == {"rank": 3, "pid": pid, "worker_logger": "some.where"}


def test_information_reaches_the_log_and_details_for_debugging_do_not(caplog: pytest.LogCaptureFixture) -> None:
    run_worker(SET_UP + "import logging; log = logging.getLogger('x'); log.debug('a detail'); log.info('a fact')")
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.INFO, "a fact")]


@pytest.mark.parametrize(
    ("program", "level", "message"),
    [
        ("import warnings; warnings.warn('old')", logging.WARNING, "old"),
        ("raise ValueError('broken')", logging.CRITICAL, "uncaught: ValueError('broken')"),
        (
            "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
            logging.CRITICAL,
            "uncaught: ZeroDivisionError",
        ),
    ],
)
def test_warnings_and_what_nobody_caught_are_one_record_each(
    caplog: pytest.LogCaptureFixture, program: str, level: int, message: str
) -> None:
    run_worker(SET_UP + program)
    (record,) = caplog.records
    assert record.levelno == level
    assert message in record.getMessage()
    assert ("Traceback" in fields(record).get("exception", "")) is (level == logging.CRITICAL)


def test_the_last_words_of_a_crash_are_told(caplog: pytest.LogCaptureFixture) -> None:
    run_worker("import faulthandler, os; faulthandler.enable(); os.write(2, b'terminate called'); os.abort()")
    messages = [record.getMessage() for record in caplog.records]
    assert messages[0].startswith("terminate called")
    assert any("Aborted" in message for message in messages)
    assert all(fields(record)["rank"] == 3 for record in caplog.records)


def test_bytes_that_are_no_text_and_records_that_are_none_are_told_as_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run_worker("import os; os.write(2, b'\\xff\\x1b[0m\\n\\n\\x1e{broken\\nno end')")
    assert [record.getMessage() for record in caplog.records] == ["\\xff\x1b[0m", "\x1e{broken", "no end"]


def test_a_line_without_end_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    run_worker(f"import sys; sys.stderr.write('x' * {5 * MAX_LINE_BYTES} + '\\nnext\\n')")
    assert [len(record.getMessage()) for record in caplog.records] == [MAX_LINE_BYTES, len("next")]


def test_a_worker_that_says_too_much_is_not_heard_for_a_while(caplog: pytest.LogCaptureFixture) -> None:
    run_worker(f"import sys\nfor i in range({10 * BURST_LINES}): print(i, file=sys.stderr)")
    *told, last = [record.getMessage() for record in caplog.records]
    assert told[:BURST_LINES] == [str(i) for i in range(BURST_LINES)]
    assert len(told) < 5 * BURST_LINES
    assert "lines of the worker's output" in last and last.startswith("dropped ")


async def test_writing_does_not_block_while_nobody_reads() -> None:
    pipe = ErrorPipe(0)
    program = "import os\nfor _ in range(1000):\n  try: os.write(2, b'x' * 65535 + b'\\n')\n  except OSError: pass"
    # The event loop stands still meanwhile.
    done = subprocess.run([sys.executable, "-c", program], stderr=pipe.write_fd, check=False)
    pipe.started(1)
    pipe.close()
    assert done.returncode == 0
