"""The disk tier as the scheduler sees it: the prefixes that are on disk."""
