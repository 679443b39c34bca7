"""Small parts that any room of the front end may use."""
