"""All servers and commands of a record. Slow ones come first, so that the last ones end at the same time."""

import re
from collections.abc import Iterable

from tests.golden import (
    caches,
    commands,
    constraints,
    demo,
    families,
    formats,
    pooled,
    several,
    speculation,
    surfaces,
    tools,
)
from tests.golden.cases import NOTHING, Command, Served

Work = Served | Command
_NAMED = re.compile(r"\{models\}/([\w.-]+)")
WORKS: tuple[Work, ...] = (
    *surfaces.SERVERS,
    *several.SERVERS,
    *caches.SERVERS,
    *demo.SERVERS,
    *constraints.SERVERS,
    *speculation.SERVERS,
    *pooled.SERVERS,
    *tools.SERVERS,
    *families.SERVERS,
    *formats.SERVERS,
    *commands.ALL,
)


def checkpoints_of(works: Iterable[Work]) -> set[str]:
    """Return the names of the checkpoints that `works` read."""
    works = [*works]
    served = [work for work in works if isinstance(work, Served)]
    texts = [text for work in served for text in (*work.options, *work.files.values())]
    texts += [text for work in works if isinstance(work, Command) for text in work.arguments]
    named = {name for text in texts for name in _NAMED.findall(text)}
    return ({work.model for work in served} | named) - {"", NOTHING}
