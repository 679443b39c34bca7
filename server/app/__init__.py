"""The application: the routes of all surfaces, and the middleware around them."""
