"""What tests of several folders share: models, groups of workers, servers, and what they are compared with."""
