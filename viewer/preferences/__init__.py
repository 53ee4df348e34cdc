"""The page of preferences: candidates for the turns of a rollout with their advantages, and the pairs that it is in."""
