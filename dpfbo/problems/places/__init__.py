"""Problems whose agents are places: each tunes a model of the sales, or the loans, of one place."""
