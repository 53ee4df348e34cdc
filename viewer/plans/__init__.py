"""Draw the calls of planning agents over time, with the calls that each one waits for."""
