"""Say why rollouts did not end as they should: counts, examples and likely causes from the stored rows."""
