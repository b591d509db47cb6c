"""Attacks on the real server code that bound epsilon from below, and checks that find false claims.

The claim about a server is the epsilon computed from its ledger, never from its settings.
"""
