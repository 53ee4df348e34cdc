"""What instances that are to be run will use, estimated before anything is spent."""
