"""Tests apart from the user: a home, an environment and working folders of their own, and a watch over the user's."""
