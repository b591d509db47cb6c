"""Attacks on a server, and checks of what it charges and sends."""
