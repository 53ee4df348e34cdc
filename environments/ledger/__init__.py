"""A toy environment: accounts and orders behind a small API."""
