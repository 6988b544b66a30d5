"""Text of a /metrics page in, readings out. Pure."""
