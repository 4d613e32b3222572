"""Configuration of Sphinx: `make docs`."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]

project = "lltm"
author = "The LLTM operator library's authors"
copyright = author
release = re.search(r'VERSION = "([0-9.]+)"', (ROOT / "python" / "lltm" / "_version.py").read_text())[1]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
myst_heading_anchors = 3

# A reference that leads nowhere is a warning, and make docs makes warnings errors. Those of other packages need a
# download, and are plain text.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(torch|pathlib|collections|lltm\._(loader|lstm|conversion))\..*|Path|LibraryPath"),
]

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_theme_options = {"light_css_variables": {"code-font-size": "var(--font-size--small--2)"}}
html_title = f"lltm {release}"


# The files outside of docs/ that are pages, too, by the names of these pages.
PAGES = {
    "CONTRIBUTING.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "RELEASING.md": "releasing.md",
    "benchmark/README.md": "benchmark.md",
    "benchmark/RESULTS.md": "results.md",
    "examples/operators/README.md": "example-operators.md",
    "tools/tune/README.md": "tune.md",
}
INCLUDE = re.compile(r"```{include} (\S+)\n```")
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)#\s]+)")


def repository() -> str:
    """The address of the source code, [project.urls] Repository in pyproject.toml; empty until there is one."""
    found = re.search(r'^Repository = "([^"]+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    return found[1] if found else ""


def link_from_docs(path: Path) -> str:
    """Where a page links to, for a file of the checkout: a page, the repository, or the file itself."""
    name = path.relative_to(ROOT).as_posix()
    if name in PAGES or path.is_relative_to(ROOT / "docs"):
        return PAGES.get(name, name.removeprefix("docs/"))
    if address := repository():
        return f"{address}/{'tree' if path.is_dir() else 'blob'}/main/{name}"
    readme = path / "README.md"
    return link_from_docs(readme) if readme.exists() else f"path:../{name}"


def links_from_docs(text: str, folder: Path) -> str:
    return LINK.sub(lambda link: link_from_docs((folder / link[1]).resolve()), text)


def read_source(app, docname, source):
    """Includes the files that are pages, and leads links to files of the checkout somewhere."""
    text = links_from_docs(source[0], ROOT / "docs")
    if include := INCLUDE.fullmatch(text.strip()):
        path = (ROOT / "docs" / include[1]).resolve()
        text = links_from_docs(path.read_text(), path.parent)
    source[0] = text


def setup(app):
    app.connect("source-read", read_source)
