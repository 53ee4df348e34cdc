"""What figures of scored rollouts are computed from: terms by question, attempts, prices."""
