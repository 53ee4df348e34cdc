"""Looking into runs: rows and where they come from, all runs at one glance, two runs beside each other."""
