"""The waist: what every rank does, in order, as plain data."""
