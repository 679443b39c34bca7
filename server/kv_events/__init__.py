"""KV events: which prefixes are cached here, told to routers over ZeroMQ as vLLM does."""
