"""The columns of caches in tables of memory."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheColumns:
    """The KV cache, and recurrent states where a model of the table has some."""

    has_states: bool

    @property
    def names(self) -> tuple[str, ...]:
        """The headings."""
        return ("KV cache", "states") if self.has_states else ("KV cache",)

    def sizes(self, kv_cache: int, states: int) -> tuple[int, ...]:
        """Return the bytes of a row."""
        return (kv_cache, states) if self.has_states else (kv_cache,)
