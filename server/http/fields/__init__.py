"""Building blocks of request bodies: types with ranges, and the treatment of unknown fields."""
