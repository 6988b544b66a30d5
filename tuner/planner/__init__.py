"""Both memory pools of a start, computed before it. Pure arithmetic."""
