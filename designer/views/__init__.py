"""Views of the page: its tabs, one file each, and the other widgets around the canvases."""

from meshwave.designer.views._view import FILL, Page, Place, View, views

__all__ = ["FILL", "Page", "Place", "View", "views"]
