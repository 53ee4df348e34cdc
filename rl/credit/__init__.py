"""Rules that turn the rewards of a group into advantages, one file each."""
