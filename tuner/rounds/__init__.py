"""The history of rounds and the difference between two of them."""
