"""Attacks on a curator's release of a table, and checks of the release."""
