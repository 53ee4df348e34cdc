"""Journal the finished work of a running stage instance, so that a crash loses only what was in flight."""
