"""The audit: attacks on the real server code that bound epsilon from below, and checks that find false claims.

The claim about a server is the epsilon that an accountant computes from the server's ledger, never from its settings.
"""
