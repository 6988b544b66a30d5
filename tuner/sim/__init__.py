"""A stand-in for an SGLang 0.5.17 server: its flags, log lines, endpoints, metrics and cache, on a simulated card."""
