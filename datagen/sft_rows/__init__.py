"""The stage `sft_rows`: select trajectories and encode them as fine-tuning rows."""
