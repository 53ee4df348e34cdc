"""Search of the web, recorded: providers, guarded page fetches, passages, and a record that can be replayed."""
