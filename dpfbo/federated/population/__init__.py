"""The agents of one process: their shared settings (agents), their observations (state), and their steps (shard)."""
