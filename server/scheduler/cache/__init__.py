"""Cached pages: their scopes, the radix tree, the free list, and the events that report them."""
