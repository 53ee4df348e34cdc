"""File formats of other projects, each in a folder of its own behind an entry point of the group `treadle.formats`."""
