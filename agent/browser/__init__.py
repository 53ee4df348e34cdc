"""Draw pages that models wrote, in a real Chromium inside a sandbox without a network."""
