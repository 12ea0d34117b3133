"""Pages of the server: the design page and the transfer lab."""
