"""Several models behind one gateway: a process without an engine, and a server of its own for each model."""
