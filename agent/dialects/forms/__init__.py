"""Forms in which model families write tool calls, one file each."""
