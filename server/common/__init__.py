"""The small parts that any package of the front end may use."""
