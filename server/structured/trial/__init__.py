"""Sandboxed compiles: compilation in a process that a grammar may crash, hang or fill."""
