"""The stage `rollouts`: trajectories of a model in the run's environment, nothing scored."""
