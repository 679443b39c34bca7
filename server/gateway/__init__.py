"""Several models behind one front door: a process without an engine, and a server of its own for each model."""
