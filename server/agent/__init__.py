"""The agent of a host: runs the workers of one pipeline stage for a front end on another host."""
