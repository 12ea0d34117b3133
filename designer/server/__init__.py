"""The web server of the designer: pages, access by token, logs and metrics."""
