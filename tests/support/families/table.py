"""All rows."""

from tests.support.families.dense import DENSE
from tests.support.families.experts import EXPERTS, LATENTS
from tests.support.families.nested import NESTED

WITH_EXPERTS = EXPERTS | LATENTS
TEXT = DENSE | WITH_EXPERTS
FAMILIES = TEXT | NESTED
