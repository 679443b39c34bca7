"""The table of model families: a row for each family, and for each feature of one."""
