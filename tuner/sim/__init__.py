"""A stand-in for SGLang, in a process of its own, sized by the planner. It proves nothing about the planner."""
