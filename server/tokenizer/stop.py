"""Stop strings, which may span tokens."""


class StopMatcher:
    """Finds the first stop string in a text that arrives in pieces, and never emits a part of one.

    The first stop string is the one that is complete first; of two that end together, the longer. The result depends on
    the text alone, not on how it was split into pieces.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        if not all(stops):
            raise ValueError("a stop string cannot be empty")
        self._stops = stops
        self._longest_part = max(map(len, stops), default=1) - 1
        self._held = ""  # the end of the text so far that may begin a stop string

    def push(self, text: str) -> tuple[str, str | None]:
        """Take the next piece. Return the text in which no stop string can begin, and the stop string if one is
        complete.

        After a match the rest of the text is dropped.
        """
        text = self._held + text
        self._held = ""
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if found:
            _, start, stop = min(found)
            return text[:start], stop
        cut = len(text) - self._part_at_end(text)
        self._held = text[cut:]
        return text[:cut], None

    def flush(self) -> str:
        """Take the end of the text. Return the text that was held back, which is no stop string."""
        held, self._held = self._held, ""
        return held

    def _part_at_end(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that begins a stop string."""
        for length in range(min(self._longest_part, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
