"""Sphinx configuration of the documentation site; ``make docs`` builds it into ``build/docs``."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS / "_ext")]

from meshwave import __version__  # noqa: E402  # needs the path above

project = "Meshwave"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "generated", "mathml"]
exclude_patterns = ["_ext", "examples/lessons"]

nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!meshwave\.[A-Za-z]+(\.[a-z_]+)?$).*")]  # only the public API is documented

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"

html_theme = "furo"
html_title = f"Meshwave {version}"
html_copy_source = False
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}
