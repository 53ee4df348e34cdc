"""Rollouts whose turns a critic chooses among candidates: a diagnostic of the critic."""
