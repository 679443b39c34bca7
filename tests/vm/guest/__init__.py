"""What runs on the virtual machine, with nothing but Python's own library."""
