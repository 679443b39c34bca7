"""Tool calls in generated text: formats as data, incremental parsers, and grammars of calls.

Text in, deltas out: nothing here depends on the engine, an API, a clock or randomness.

A model may write a broken call, or text that only begins like a call. A call that breaks before its name is complete is
text of the answer, to the last character, and later calls are still read. Text with a complete name is a call. If its
arguments break, all text up to the end of the call belongs to them, so the client sees the model's text; if they are
cut short, they are the part that arrived. A bare call, without a marker, must name a tool of the request; other calls
may have any name.
"""
