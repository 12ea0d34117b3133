"""Lessons on the page: a pane next to the canvases that leads through the steps of a lesson."""

from meshwave.designer.lessons.pane import LessonPane
