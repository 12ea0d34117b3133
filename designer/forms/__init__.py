"""The form of a design, generated from the JSON Schema of the document.

:func:`form_sections` returns the form as plain data, :func:`make_edit` the edit of the document for an input. Only the order
of the sections, the units and a few labels are defined here.
"""

from meshwave.designer.forms.changes import make_edit, read_input
from meshwave.designer.forms.fields import Field, form_sections
from meshwave.designer.forms.form import Form, find_field, problems_by_path
from meshwave.designer.forms.values import format_number, key_label
