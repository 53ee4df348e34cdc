"""The report of runs as one web page: what each part of it shows, gathered from records and tables."""
