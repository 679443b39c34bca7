"""The meaning of each operation, in torch: functions of a run and the operation."""
