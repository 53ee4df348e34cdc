"""The stage `exploration`: models explore the states of tasks and make further tasks of what they found."""
