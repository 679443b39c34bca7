"""The models' servers: where each one runs, and which of them are loaded."""
