"""Problems whose agents are places: each tunes a model of the sales or loans of one place."""
