"""Attacks on a server, and checks of what it broadcasts and what it charges to the ledger."""
