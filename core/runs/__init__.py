"""Runs, stages and their instances: records, attempts, execution, reuse of finished jobs, shards."""
