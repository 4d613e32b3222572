"""The fenced blocks of a Markdown page."""

import re
from pathlib import Path
from typing import NamedTuple

FENCED = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*) -->\n)?^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    mark: str
    """The comment above it."""
    language: str
    text: str


def blocks(page: Path | str, language: str | None = None) -> list[Block]:
    """The blocks of a page, or of its text, or those in one language."""
    text = page if isinstance(page, str) else page.read_text()
    found = (match.groupdict(default="") for match in FENCED.finditer(text))
    return [Block(**block) for block in found if language in (None, block["language"])]
