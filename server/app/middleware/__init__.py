"""The middleware: each file is one layer around every request.

The middleware uses ASGI directly: Starlette's ``BaseHTTPMiddleware`` hides the client's disconnect from the endpoint,
and a disconnect must abort a generation.
"""
