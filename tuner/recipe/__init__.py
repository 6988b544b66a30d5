"""Recipes and the files they come from and go to."""
