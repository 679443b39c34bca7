"""The operations of a forward pass as data: what each reads and writes, its attributes and its cost."""
