"""The designer: the Panel page on which designs are drawn, predicted and launched.

``meshwave.designer(design)`` shows it in a notebook cell; see :class:`meshwave.designer.notebook.Designer`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwave.designer.notebook import Designer

if __name__ != "meshwave.designer":  # in a checkout, `import designer` would load a second copy of every module
    raise ImportError(f"import meshwave.designer, not {__name__}")


class _Designer(ModuleType):
    """A callable package: ``designer`` is both a function of the Python API and the name of this package."""

    def __call__(self, *arguments: Any, **options: Any) -> Designer:
        from meshwave.designer.notebook import Designer

        return Designer(*arguments, **options)


sys.modules[__name__].__class__ = _Designer
