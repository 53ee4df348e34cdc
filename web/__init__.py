"""Search the web for the agent and record the results: providers, guarded fetches, passages, replayable records."""
