"""Rules that name what is wrong from a log, a plan or readings, and what to do about it. Pure."""
