"""KV events: reports of the cached prefixes to routers, over ZeroMQ in vLLM's format."""
