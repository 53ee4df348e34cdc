"""Environment `planning`: the model plans tasks that depend on each other, and its calls run side by side."""
