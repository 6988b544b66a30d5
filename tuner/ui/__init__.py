"""The terminal app. The only place that imports Textual."""
