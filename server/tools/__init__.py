"""Tool calls in what a model writes: formats as data, parsers of output that comes in pieces, grammars of calls.

Text in, deltas out: nothing here knows the engine, an API, a clock or chance.
"""
