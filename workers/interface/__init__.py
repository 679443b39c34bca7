"""All that the front end may know of the workers: messages, settings, errors, log lines and the opening of files."""
