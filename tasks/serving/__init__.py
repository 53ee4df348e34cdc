"""The model servers of a flow: which models an instance asks for, on which devices, and for how long."""
