"""Environments that a service holds: AgentEvolver's, or Treadle's own `treadle environment serve`."""
