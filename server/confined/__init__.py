"""The processes for untrusted work, which must neither delay nor harm the server."""
