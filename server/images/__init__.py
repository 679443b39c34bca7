"""Images of requests: from base64 to tiles in the memory that workers map."""
