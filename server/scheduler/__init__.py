"""The choice of the next step's tokens, and of the pages for their keys and values. Pure: no clock, no sockets."""
