"""DocTags (Nassar et al., 2025), the markup in which granite-docling and SmolDocling write a page.

Their tokenizers declare the tags special. `skip_special_tokens`, which most clients leave at its default, would reduce
a page to its words. vLLM does so, and a client must ask for special tokens. Here a tag is text: no client of such a
model wants a page without tags, and Docling's own settings for servers skip special tokens.
"""

import re
from collections.abc import Mapping

_KNOWN = "<doctag>"  # a vocabulary with this token has DocTags
_TAG = re.compile(r"</?[a-z_]")  # some tokens are the beginning of a tag alone, such as `<key_`
# Tokens of such vocabularies that are not of the markup: those of images, and those that begin or end texts.
_OTHER = re.compile(
    r"<(image|fake_token_around_image|global-img|row_\d+_col_\d+|end_of_utterance|pad|unk|s)>|</s>", re.ASCII
)


def tags(special: Mapping[int, str]) -> frozenset[int]:
    """Return the ids of the `special` tokens, texts by id, that are tags; none for a vocabulary without DocTags."""
    if _KNOWN not in special.values():
        return frozenset()
    return frozenset(id for id, text in special.items() if _TAG.match(text) and not _OTHER.fullmatch(text))
