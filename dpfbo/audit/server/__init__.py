"""Attacks on a server, and checks of what it charges to the ledger and broadcasts."""
