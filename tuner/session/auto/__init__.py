"""From a need to a server that was seen to meet it: solve, start, prove, learn, and stop as soon as it does."""
