"""Attacks on the release of a curator, and checks of it."""
