"""The mask board between the front end and rank 0: what is said there, and what is not."""

import ctypes
import os
import signal
import struct
import subprocess
import sys
import threading
import zlib

import pytest
from numaserve.server.scheduler.matcher import MaskState
from numaserve.shm_comm import Board, RingError
from numaserve.shm_comm.mask_board import MaskBoard, create_mask_board

ROWS, VOCABULARY = 3, 1000
MOST_ROWS, LARGEST_VOCABULARY = 1 << 16, 1 << 23
NBYTES = 128  # of 1000 bits in whole words
# Byte offsets, written here a second time on purpose: the layout is a contract.
MAGIC, VERSION, HEADER_ROWS, ROW_BYTES = 0, 8, 12, 16
FIRST_ROW, ROW_STRIDE = 4096, 2 * 128 + 128
A_MOMENT, LONG = 0.02, 60.0
NOTHING = 0  # the state of a row of which nothing was said


@pytest.fixture
def board():
    made = create_mask_board(ROWS, VOCABULARY)
    yield made
    made.close()


@pytest.fixture
def rank_0(board):
    return Board(board.fd, board.nonce)


def publish_mask(board: MaskBoard, step: int, row: int, bits: bytes) -> None:
    memory = ctypes.create_string_buffer(bits.ljust(NBYTES, b"\0"), NBYTES)
    board.publish(step, row, MaskState.MASK, ctypes.addressof(memory))


def test_a_mask_is_read_as_it_was_published(board, rank_0):
    assert (rank_0.rows, rank_0.row_bytes, board.row_bytes) == (ROWS, NBYTES, NBYTES)
    for step in range(5):
        for row in range(ROWS):
            publish_mask(board, step, row, bytes([step, row]) * 20)
        for row in range(ROWS):
            assert rank_0.wait(step, row, LONG) == MaskState.MASK
            assert rank_0.bits(step, row) == (bytes([step, row]) * 20).ljust(NBYTES, b"\0")


def test_free_and_drop_are_told_apart(board, rank_0):
    board.publish(7, 0, MaskState.FREE)
    board.publish(7, 1, MaskState.DROP)
    assert (rank_0.wait(7, 0, LONG), rank_0.wait(7, 1, LONG)) == (MaskState.FREE, MaskState.DROP)


def test_two_steps_in_flight_do_not_touch_each_other(board, rank_0):
    publish_mask(board, 4, 1, b"four")
    publish_mask(board, 5, 1, b"five")
    assert (rank_0.wait(4, 1, LONG), rank_0.bits(4, 1)[:4]) == (MaskState.MASK, b"four")
    assert (rank_0.wait(5, 1, LONG), rank_0.bits(5, 1)[:4]) == (MaskState.MASK, b"five")


@pytest.mark.parametrize("other", [0, 1, 2, 3, 6, 2**39])
def test_the_word_of_another_step_says_nothing(board, rank_0, other):
    board.publish(other, 0, MaskState.FREE)
    assert rank_0.wait(4, 0, A_MOMENT) == NOTHING


def test_a_row_of_which_nobody_says_anything_is_not_waited_for_beyond_the_deadline(rank_0):
    assert rank_0.wait(0, 0, A_MOMENT) == NOTHING
    assert rank_0.wait(0, 0, 0.0) == NOTHING


def test_a_sleeper_is_woken(board, rank_0):
    found = []
    sleeper = threading.Thread(target=lambda: found.append(rank_0.wait(2, 2, LONG)))
    sleeper.start()
    while os.pread(board.fd, 4, FIRST_ROW + 2 * ROW_STRIDE + 128) == bytes(4):  # it does not sleep yet
        pass
    publish_mask(board, 2, 2, b"mask")
    sleeper.join()
    assert found == [MaskState.MASK]
    assert os.pread(board.fd, 4, FIRST_ROW + 2 * ROW_STRIDE + 128) == bytes(4)


@pytest.mark.parametrize("word", [0, 1, 2**64 - 1, 0xDEADBEEF, (6 << 24) | 1])
def test_a_word_that_is_garbage_says_nothing(board, rank_0, word):
    os.pwrite(board.fd, struct.pack("=Q", word), FIRST_ROW)
    assert rank_0.wait(6, 0, A_MOMENT) == NOTHING


@pytest.mark.parametrize("state", [0, 4, 255])
def test_a_state_that_there_is_not_is_a_drop_at_once(board, rank_0, state):
    board.publish(6, 0, MaskState.FREE)
    (word,) = struct.unpack("=Q", os.pread(board.fd, 8, FIRST_ROW))
    assert word & 0xFF == MaskState.FREE
    assert word >> 24 == 6
    assert word >> 8 & 0xFFFF == board.nonce & 0xFFFF
    os.pwrite(board.fd, struct.pack("=Q", word & ~0xFF | state), FIRST_ROW)
    assert rank_0.wait(6, 0, LONG) == MaskState.DROP


FRONT_END = """
import ctypes, random, sys, zlib
from numaserve.shm_comm import Board
board, chance = Board(int(sys.argv[1]), int(sys.argv[2])), random.Random(5)
for step in range(int(sys.argv[3])):
    if step >= 2:
        sys.stdin.readline()  # the result of the step that had this half before
    for row in chance.sample(range(board.rows), board.rows):
        key = zlib.crc32(b"%d %d" % (step, row))
        bits = key.to_bytes(4, "little") * (board.row_bytes // 4)
        memory = ctypes.create_string_buffer(bits, len(bits))
        for _ in range(key % 3000):
            pass
        board.publish(step, row, 1 + key % 3, ctypes.addressof(memory))
"""


def test_another_process_is_understood_for_thousands_of_steps(board, rank_0):
    steps = 5000
    process = subprocess.Popen(
        [sys.executable, "-c", FRONT_END, str(board.fd), str(board.nonce), str(steps)],
        pass_fds=[board.fd],
        stdin=subprocess.PIPE,
    )
    with process:
        assert process.stdin is not None
        for step in range(steps):
            for row in range(ROWS):
                key = zlib.crc32(b"%d %d" % (step, row))
                assert rank_0.wait(step, row, LONG) == 1 + key % 3
                if key % 3 == 0:
                    assert rank_0.bits(step, row) == key.to_bytes(4, "little") * (NBYTES // 4)
            if step < steps - 2:
                process.stdin.write(b"\n")
                process.stdin.flush()
    assert process.returncode == 0


WRITER = """
import ctypes, signal, sys
from numaserve.shm_comm import Board
board = Board(int(sys.argv[1]), int(sys.argv[2]))
memory = ctypes.create_string_buffer(b"x" * board.row_bytes, board.row_bytes)
step = 0
while True:
    for row in range(board.rows):
        board.publish(step, row, 1, ctypes.addressof(memory))
    if step == 0:
        print("writing", flush=True)
    step += 1
"""


def test_a_writer_that_is_killed_at_any_point_holds_nobody_beyond_the_deadline(board, rank_0):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(board.fd), str(board.nonce)],
        pass_fds=[board.fd],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        process.send_signal(signal.SIGKILL)
    (word,) = struct.unpack("=Q", os.pread(board.fd, 8, FIRST_ROW))
    last = word >> 24
    assert rank_0.wait(last, 0, LONG) == MaskState.MASK
    assert rank_0.bits(last, 0) == b"x" * NBYTES
    for row in range(ROWS):
        assert rank_0.wait(last + 4, row, A_MOMENT) == NOTHING


def test_what_is_published_after_the_board_is_closed_harms_nobody(board):
    board.close()
    board.close()
    publish_mask(board, 0, 0, b"late")
    board.publish(1, 0, MaskState.DROP)


def test_the_owner_cannot_say_what_there_is_not(board):
    with pytest.raises(IndexError, match="token masks: the row is out of range"):
        board.publish(0, ROWS, MaskState.FREE)
    with pytest.raises(ValueError, match="token masks: the state must be 1"):
        board.publish(0, 0, 0)
    with pytest.raises(ValueError, match="token masks: the address of the bits is missing"):
        board.publish(0, 0, MaskState.MASK)


def test_a_worker_of_another_group_is_refused(board):
    with pytest.raises(RingError, match="wrong nonce"):
        Board(board.fd, board.nonce ^ 1)


@pytest.mark.parametrize(
    ("offset", "value", "complaint"),
    [
        (MAGIC, struct.pack("=Q", 1), "wrong magic"),
        (VERSION, struct.pack("=I", 2), "version 2, but this build needs version 1"),
        (HEADER_ROWS, struct.pack("=I", 2**31), "rows"),
        (HEADER_ROWS, struct.pack("=I", 100), "the shared memory has"),
        (ROW_BYTES, struct.pack("=I", 3), "not a multiple of 4"),
        (ROW_BYTES, struct.pack("=I", 4096), "the shared memory has"),
    ],
)
def test_a_header_that_lies_is_refused(board, offset, value, complaint):
    os.pwrite(board.fd, value, offset)
    with pytest.raises(RingError, match=complaint):
        Board(board.fd, board.nonce)


@pytest.mark.parametrize(("rows", "vocabulary"), [(MOST_ROWS, 1), (1, LARGEST_VOCABULARY)])
def test_the_largest_sizes_are_accepted(rows, vocabulary):
    board = create_mask_board(rows, vocabulary)
    try:
        rank_0 = Board(board.fd, board.nonce)
        assert (rank_0.rows, rank_0.row_bytes) == (rows, -(-vocabulary // 32) * 4)
    finally:
        board.close()


@pytest.mark.parametrize(("rows", "vocabulary"), [(0, 10), (MOST_ROWS + 1, 10), (1, 0), (1, LARGEST_VOCABULARY + 1)])
def test_impossible_sizes_are_refused(rows, vocabulary):
    with pytest.raises(RingError, match="token masks"):
        create_mask_board(rows, vocabulary)


def test_making_a_board_takes_memory_for_its_header_only(board):
    assert os.fstat(board.fd).st_blocks * 512 == 4096
    assert not os.get_inheritable(board.fd)
