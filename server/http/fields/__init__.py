"""Building blocks of request bodies: types with ranges, and fields that are not known."""
