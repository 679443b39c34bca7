"""The Ray Serve application of numaserve, whose replicas own NUMA nodes. See docs/ray.md."""
