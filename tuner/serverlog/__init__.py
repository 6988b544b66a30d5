"""Text of a server log in, facts out. Pure: opens no file."""
