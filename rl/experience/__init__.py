"""Experience of earlier rollouts: summarised, validated, found again, and shown to the policy in training."""
