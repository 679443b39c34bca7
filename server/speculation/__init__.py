"""Draft tokens: their drafters, their prices, and what the server learns about both."""
