"""What everything stands on: config, stages, run store, journal, artifacts, model access. Knows no stage."""
