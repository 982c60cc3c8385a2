"""Recording: one journal, many views."""
