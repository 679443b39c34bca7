"""The worker process: one per (virtual) NUMA node, holding one tensor-parallel shard."""
