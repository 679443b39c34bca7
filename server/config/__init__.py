"""The server's configuration: its keys, types, file and errors."""
