"""Parts that figures of scored rollouts are computed from: sums by question, attempts, lengths and prices."""
