"""Independent jobs of a stage: their keys, the runner that retries them, and the skeleton of such a stage."""
