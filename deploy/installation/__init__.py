"""The installation of the service: versions side by side, the current version, and removal."""
