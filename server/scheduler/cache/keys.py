"""The keys by which the radix tree finds pages.

A position that holds a token has its id as key. A position that holds other content, such as a part of an image, has a
digest of that content: its token id is only a placeholder, which all such positions share.
"""

Key = int | bytes  # a token id, or the digest of other content
PageKey = tuple[Key, ...]  # of each position of a page
