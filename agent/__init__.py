"""The agent: protocol, environment, rollout engine, tools and sandbox."""
