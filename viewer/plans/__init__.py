"""Draw the calls of planning agents over time, with what each waits for."""
