"""Request bodies: bounded before they are decoded, checked, and decoded beside the event loop where they are long."""
