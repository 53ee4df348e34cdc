"""Judge whether answers are correct, for the flywheel and for evaluation."""
