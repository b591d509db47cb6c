"""The audit of a secure sum: the audit plays a curious or an active server, and checks the sites' answers."""
