"""The stage `selection`: choose training questions by Pareto fronts."""
