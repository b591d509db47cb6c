"""Search spaces: their parameters, the unit cube that agents work in, and its sub-regions."""
