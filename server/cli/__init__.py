"""The commands of ``numaserve``."""
