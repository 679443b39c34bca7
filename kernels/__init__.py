"""Native kernels: one source, three instruction sets, one native call per step."""
