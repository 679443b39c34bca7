"""The link between two hosts with consecutive pipeline stages, and the time that rows take on it."""

from dataclasses import dataclass

from numaserve.workers.interface.host_links import PART_BYTES

# Bytes per second that the thread of a rank's socket encrypts or decrypts: a core of a Zen 4 took 0.88 to 0.95 s for
# each GB that was sent in parts of 1 MiB, and 0.83 to 0.86 s for each GB that was received.
_ENCRYPTED_BYTES_S = 1.1e9


@dataclass(frozen=True)
class Link:
    """A link of `gbit_s` Gbit/s, which all ranks of a stage share; a message of no length takes `latency_us`."""

    gbit_s: float
    latency_us: float

    @property
    def latency_s(self) -> float:
        """Seconds of a message of no length."""
        return self.latency_us * 1e-6

    def seconds(self, rank_bytes: int, ranks: int) -> float:
        """Return the time from the end of a step to the start of the next stage's, whose ranks get `rank_bytes` each.

        A part of a message is encrypted, sent and decrypted one after the other, while other parts follow it.
        """
        part = min(rank_bytes, PART_BYTES)
        first = 2 * part / _ENCRYPTED_BYTES_S + self._sent_s(part, ranks)
        return self.latency_s + first + self.busy_s(rank_bytes - part, ranks)

    def busy_s(self, rank_bytes: int, ranks: int) -> float:
        """Return the time that each of several steps takes if they follow each other closely."""
        return max(rank_bytes / _ENCRYPTED_BYTES_S, self._sent_s(rank_bytes, ranks))

    def _sent_s(self, rank_bytes: int, ranks: int) -> float:
        return 8e-9 * ranks * rank_bytes / self.gbit_s
