"""KV events of real servers, read by what others wrote: ``make test-kv-events``."""
