"""The cost of a step: its work, and the time that is learned from the steps before it."""
