"""Ray: hosts, pools and jobs."""
