"""The drafters of the front end."""
