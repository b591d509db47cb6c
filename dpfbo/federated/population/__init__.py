"""The agents of one process: settings (agents), what they know (state), blocks of them, and all of them (shard)."""
