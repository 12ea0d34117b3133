"""Things that are drawn on, one file each: the Python face of a widget in ``static/``."""
