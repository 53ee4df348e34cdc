"""HTTP service that summarises trajectories as experience and retrieves it, with AgentEvolver's request format."""
