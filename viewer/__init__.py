"""Serve the trajectory viewer of `treadle view`: a local web server that shows a run's trajectories.

`catalogue.py` reads the columns for filtering, `index.py` filters, sorts and counts, `reading.py` reads one trajectory,
`app.py` renders pages. Documented in docs/behaviour/viewer.md.
"""
