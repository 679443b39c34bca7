"""All servers and commands of a record. Slow ones come first, so that the last ones end at the same time."""

import re
from collections.abc import Iterable

from tests.golden import errors, surfaces
from tests.golden.cases import Command, Served

Work = Served | Command
_NAMED = re.compile(r"\{models\}/([\w.-]+)")
WORKS: tuple[Work, ...] = (*surfaces.SERVERS, *errors.SERVERS)


def checkpoints_of(works: Iterable[Work]) -> set[str]:
    """Return the names of the checkpoints that `works` read."""
    works = [*works]
    served = [work for work in works if isinstance(work, Served)]
    drafts = {
        each.removeprefix("{models}/") for work in served for each in work.options if each.startswith("{models}/")
    }
    return {work.model for work in served} | drafts
