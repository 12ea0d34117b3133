"""People who share a server: their roles, how they sign in, and limits on their runs."""
