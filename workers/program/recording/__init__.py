"""The vocabulary in which a forward pass is recorded: methods that append operations."""
