"""The process of a service: keys, logs, signals, service manager and exit."""
