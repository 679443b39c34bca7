"""The folder of the disk tier: its lock, its index, and the fingerprint of what its files were computed with."""
