"""The multi-turn categories of the Berkeley Function-Calling Leaderboard as an environment with native tool calls."""
