"""The installation of the service: versions side by side, the one that is served, and their removal."""
