"""The form of a design, read off the document's own schema: its fields are its form.

:func:`fields` is what the page is given, :func:`change` what becomes of an input; both are plain
functions. Only the order of the sections, the units and a few spellings are written down here.
"""

from meshwave.designer.forms.changes import change, read
from meshwave.designer.forms.fields import Field, fields
from meshwave.designer.forms.form import Form, at_fields, field_of
from meshwave.designer.forms.values import plain, titled

__all__ = ["Field", "Form", "at_fields", "change", "field_of", "fields", "plain", "read", "titled"]
