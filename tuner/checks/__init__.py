"""What is asked of a server after a start, and how the answers are judged."""
