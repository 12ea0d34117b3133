"""The tab with the form of the open design."""

from __future__ import annotations

from typing import ClassVar

from meshwave.designer.forms import Form
from meshwave.designer.views._view import FILL, View, views


@views.register("design")
class DesignView(View):
    """All settings of the open design."""

    title: ClassVar = "Design"
    order: ClassVar = 1

    def make_pane(self) -> Form:
        """Build the form."""
        return Form(self.page.session, on_profiles=self.page.open_profiles, **FILL)
