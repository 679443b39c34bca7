"""numaserve on a Ray cluster: an application of Ray Serve whose replicas own NUMA nodes. See docs/ray.md."""
