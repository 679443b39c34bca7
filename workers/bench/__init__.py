"""Measurements of the parts of the server, each compared with the best that the machine allows in the same minute."""
