"""Attacks that run the actual server code and bound epsilon from below, and checks that find false claims.

The claim about a server is the epsilon computed from its ledger, never from its settings.
"""
