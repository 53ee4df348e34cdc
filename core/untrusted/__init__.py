"""Handle data from outside: read files in confined processes, parse text, make text safe to show, keep secrets out."""
