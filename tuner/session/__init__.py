"""The loop: plan, start, check, record."""
