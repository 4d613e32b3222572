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

# A reference that leads nowhere is a warning, and make docs makes warnings errors. Those of other packages need a
# download, and are plain text.
nitpicky = True
nitpick_ignore_regex = [(r"py:.*", r"(torch|pathlib|lltm\._loader)\..*|Path|LibraryPath")]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_theme_options = {"light_css_variables": {"code-font-size": "var(--font-size--small--2)"}}
html_title = f"lltm {release}"


def name_file(link: re.Match) -> str:
    text, path = link.groups()
    return f"`{path}`" if path.endswith(text) or path.startswith(text) else f"{text} (`{path}`)"


def name_files(app, docname, source):
    """Links to files that are not pages, which work in the checkout, become the files' names."""
    source[0] = re.sub(r"\[([^]]+)\]\(\.\./([^)]+)\)", name_file, source[0])


def setup(app):
    app.connect("source-read", name_files)
