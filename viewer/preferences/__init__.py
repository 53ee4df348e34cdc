"""The page of preferences: candidates for a rollout's turns with their advantages, and the pairs with this rollout."""
