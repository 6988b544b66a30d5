"""The screens and the dialogs of the terminal app."""
