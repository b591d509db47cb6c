"""Attacks that run the actual server code and bound epsilon from below, and checks that find false claims.

If a server is audited, the claimed epsilon is computed from the server's ledger, never from the server's settings.
"""
