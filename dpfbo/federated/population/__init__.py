"""Simulated agents: settings and Algorithm 2 (`agents`), observations (`state`), and execution (`shard`)."""
