"""A page and a trace from the report of a run or a plan. Pure functions from JSON values to text."""
