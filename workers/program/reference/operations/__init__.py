"""What each operation means, in torch: functions of a run and the operation."""
