"""Widgets of the terminal app: each draws from a frozen value and knows no session."""
