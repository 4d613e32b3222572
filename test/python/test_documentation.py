"""The pages of docs/ that quote the library."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATTERNS = ["src/**/*.cpp", "src/*.h", "include/lltm/*.h", "python/lltm/*.py", "CMakeLists.txt", "cmake/*.cmake"]
SOURCES = [path for pattern in PATTERNS for path in ROOT.glob(pattern)]


def joined_literals(text: str) -> str:
    """The text without what separates the parts of a message: a message is several literals, with values between."""
    return re.sub(r'[\s"]+|f"', "", text)


def headings() -> list[str]:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    return re.findall(r"^### `(.*)`$", page, re.MULTILINE)


@pytest.mark.parametrize("message", headings())
def test_a_heading_of_the_troubleshooting_page_is_a_message(message: str):
    parts = [joined_literals(part) for part in message.split("...")]
    # Each part is somewhere, because words that several messages share are in another file than the rest.
    sources = [joined_literals(path.read_text()) for path in SOURCES]
    for part in filter(None, parts):
        assert any(part in source for source in sources), part


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "index.md").read_text()
    listed = re.findall(r"^[a-z-]+$", index, re.MULTILINE)
    assert sorted(listed) == sorted({path.stem for path in ROOT.glob("docs/*.md")} - {"index"})
