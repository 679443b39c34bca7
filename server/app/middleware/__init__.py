"""Middleware: each file is one layer around every request.

It is written against ASGI directly: Starlette's ``BaseHTTPMiddleware`` hides the client's disconnect from the endpoint,
and a disconnect must abort a generation.
"""
