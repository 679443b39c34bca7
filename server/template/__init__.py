"""The process that renders a model's chat template. Nothing here imports more than jinja2 and the standard library.

The process reads lines of JSON: first the configuration, then the arguments of one rendering in each line. It answers
each rendering with `ANSWER_HEAD` and as many bytes as that says: UTF-8, with lone surrogates passed. It ends when its
input does.
"""

import struct

ANSWER_HEAD = struct.Struct("<?Q")  # whether it is the text, rather than what is wrong; how many bytes follow
NOT_CONFINED = 3  # the exit status of a process that could not give up what it must not have
