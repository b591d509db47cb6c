"""Adapters by which a site uses dpfbo from within another library."""
