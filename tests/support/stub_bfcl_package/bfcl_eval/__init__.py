"""Stand-in for `bfcl-eval` with one class and three tasks; names, arguments and globals are as in the package."""
