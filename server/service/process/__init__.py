"""The process of a service: keys, logs, signals, the service manager, and the end."""
