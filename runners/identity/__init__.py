"""Two runs are the same if they agree in setting and seed: `setting`, then `places`, `finished`, `resumption`."""
