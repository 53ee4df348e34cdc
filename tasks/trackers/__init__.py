"""Report figures of finished stages to experiment trackers."""
