"""Manage the model servers of a flow: which models an instance needs, on which devices, and for how long."""
