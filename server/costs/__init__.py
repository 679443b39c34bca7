"""The cost of a step: its work, and the time that is learnt from the steps before it."""
