"""What a running server's steps cost: `numaserve profile`."""
