"""Other libraries that a site already uses, with dpfbo inside."""
