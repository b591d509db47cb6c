"""Attacks on a server, and checks of its broadcasts and its ledger."""
