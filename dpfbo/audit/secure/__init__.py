"""The audit of a secure sum: its sites answer a curious server and an active one."""
