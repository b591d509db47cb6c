"""What makes two runs the same. Read `setting`, then `places`, `finished`, `resumption`."""
