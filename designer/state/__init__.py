"""The transfer lab: one tensor between two meshes, drawn and planned without a pipeline."""
