"""A service that summarises trajectories as experience and finds it again, in the form that AgentEvolver calls."""
