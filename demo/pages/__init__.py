"""A sample world of web pages, whose design only the human who requests them knows."""
