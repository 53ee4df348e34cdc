"""Tools of environments: the table `environment.tools`, and calls within limits."""
