"""Configuration of Sphinx: `make docs`."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

project = "lltm"
author = "The LLTM operator library's authors"
copyright = author
release = re.search(r"project\(lltm VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

html_theme = "furo"
html_title = f"lltm {release}"


def name_files(app, docname, source):
    """Links to files that are not pages, which work in the checkout, become the files' names."""
    source[0] = re.sub(r"\[([^]]+)\]\(\.\./([^)]+)\)", r"\1 (`\2`)", source[0])


def setup(app):
    app.connect("source-read", name_files)
