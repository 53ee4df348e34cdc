"""Store runs and artifacts as files or objects: roots, leases, artifacts, parquet."""
