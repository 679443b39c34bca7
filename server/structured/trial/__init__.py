"""Compilation for trial, in a process that a grammar may crash, hang or fill."""
