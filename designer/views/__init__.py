"""Views of the page: one file per tab, and the other widgets around the canvases."""

from meshwave.designer.views._view import FILL, Page, Place, View, views
