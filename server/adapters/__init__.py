"""The LoRA adapters of a server: places on the ranks, names in requests, loading and unloading."""
