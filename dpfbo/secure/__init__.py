"""Secure sums: a server learns the noisy sum of all sites' vectors and nothing else (Bonawitz et al., CCS 2017)."""
