"""State of the pages without drawing: sessions, edits, undo, predictions and jobs."""
