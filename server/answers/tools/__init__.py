"""Tool calls in what a model writes: formats as data, parsers of output that comes in pieces, grammars of calls.

Text in, deltas out: nothing here knows the engine, an API, a clock or chance.

What a model writes may be no call, or a broken one. What breaks before its name is complete is text of the answer, to
the last character, and calls after it are read. What has a name is a call: if its arguments break, all up to its end
belongs to them, so that the client sees what was written; if they are cut short, they are what came. Bare calls, which
no marker begins, are calls of tools that the request has; otherwise a name may be any.
"""
