"""Reading an answer: as it comes, or as a whole."""
