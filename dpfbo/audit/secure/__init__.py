"""The audit of a secure sum: the audit acts as a curious or an active server."""
