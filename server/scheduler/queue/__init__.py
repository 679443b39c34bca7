"""The sequences that wait, and the turns of their clients."""
