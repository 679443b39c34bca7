"""The interface of the workers for the front end: messages, settings, errors, log lines and the opening of files."""
