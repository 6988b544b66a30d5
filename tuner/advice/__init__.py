"""What to try next, and when to stop: proposals for the next round with their reason, effect and price. Pure."""
