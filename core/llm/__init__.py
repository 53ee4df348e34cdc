"""Access to OpenAI-compatible model servers: requests, endpoint pools, retries and deadlines."""
