"""Which tokens run in the next step, and where their keys and values live. Pure: no clock, no sockets, no tensors."""
