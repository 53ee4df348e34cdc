"""Results that leave a run for other programs, and those of other programs that enter one."""
