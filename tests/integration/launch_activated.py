"""Gives sockets to a command as systemd does: `python launch_activated.py DESCRIPTOR ... -- COMMAND ...`."""

import fcntl
import os
import sys

_FIRST = 3  # sd_listen_fds(3)
_APART = 100


def main() -> None:
    split = sys.argv.index("--")
    given = [fcntl.fcntl(int(word), fcntl.F_DUPFD_CLOEXEC, _APART) for word in sys.argv[1:split]]
    for index, descriptor in enumerate(given):
        os.dup2(descriptor, _FIRST + index)
    names = ":".join(f"of-test-{index}" for index in range(len(given)))
    # By exec, as the process must be the one that is named.
    variables = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(given)), "LISTEN_FDNAMES": names}
    command = sys.argv[split + 1 :]
    os.execve(command[0], command, variables | os.environ)  # noqa: S606 what is set already is what a test is about


if __name__ == "__main__":
    main()
