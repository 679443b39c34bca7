"""The service on a virtual machine: systemd, two uneven NUMA nodes, cgroup v2, from installation to removal."""
