"""Core services: configuration, stages, run store, journal, artifacts and model access. Imports no concrete stage."""
