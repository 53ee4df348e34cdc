"""What an edit of a trajectory changed, as the viewer shows it."""
