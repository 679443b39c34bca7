"""A host of round numbers, for estimates."""

from numaserve.workers.planning.roofline.machine import Machine

ROUND = Machine(
    name="round numbers",
    node_cores=[4, 4],
    node_memory_gib=1,
    node_read_gb_s=10,
    core_gflop_s={"bf16": 1, "int8": 2},
    link_gb_s=1,
    meeting_us=5,
    barrier_us=3,
)
