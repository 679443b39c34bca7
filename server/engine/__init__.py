"""Request admission, the step loop, detokenization and streaming."""
