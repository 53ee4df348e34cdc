"""The trajectory viewer behind `treadle view`: a server on this machine alone that shows what a run made.

`catalogue.py` reads the columns that are filtered by, `index.py` filters, sorts and counts, `reading.py` fetches one
trajectory, `app.py` makes pages of it. Documented in docs/behaviour/viewer.md.
"""
