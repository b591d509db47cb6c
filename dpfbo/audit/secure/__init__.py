"""The audit of a secure sum, which plays a curious or an active server and checks the sites' answers."""
