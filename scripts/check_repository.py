"""Checks what no compiler or formatter does: pages, links and commands that belong together. Part of make lint."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "test"))

from lltm_testing.documentation import FENCED, blocks  # noqa: E402

PATTERNS = ["src/**/*.cpp", "src/**/*.h", "include/lltm/*.h", "python/lltm/*.py", "CMakeLists.txt", "cmake/*.*"]
LINK = re.compile(r"\]\((?!https?://)([^)#\s]*)(?:#([^)\s]*))?\)")


def dry_run(*targets: str) -> subprocess.CompletedProcess:
    return subprocess.run(["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True)


def joined_literals(text: str) -> str:
    """The text without what separates the parts of a message: a message is several literals, with values between."""
    return re.sub(r'[\s"]+|f"', "", text)


def messages_that_no_source_has() -> Iterator[str]:
    """The headings of the troubleshooting page quote messages."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    sources = [joined_literals(path.read_text()) for pattern in PATTERNS for path in ROOT.glob(pattern)]
    for message in re.findall(r"^### `(.*)`$", page, re.MULTILINE):
        # Each part is somewhere, because words that several messages share are in another file than the rest.
        for part in filter(None, map(joined_literals, message.split("..."))):
            if not any(part in source for source in sources):
                yield f"docs/troubleshooting.md: no source has the message `{message}`"
                break


def pages_that_the_index_lacks() -> Iterator[str]:
    listed = re.findall(r"^[a-z-]+$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE)
    pages = {path.stem for path in ROOT.glob("docs/*.md")} - {"index"}
    for name in sorted(pages.symmetric_difference(listed)):
        yield f"docs/index.md: {name} is only in the index, or only a page"


def commands_that_do_not_exist() -> Iterator[str]:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]:
        named = re.findall(r"`make ([a-z-]+)", page.read_text())
        for block in blocks(page, "sh"):
            named += re.findall(r"^make ([a-z-]+)", block.text, re.MULTILINE)
        if named:
            result = dry_run(*dict.fromkeys(named))
            if result.returncode:
                yield f"{page.relative_to(ROOT)}: {result.stderr.strip()}"


def anchors(page: Path) -> set[str]:
    """What a link can name on a page: its headings, as GitHub and MyST spell them."""
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().strip().replace(" ", "-") for heading in headings}


def broken_links() -> Iterator[str]:
    folders = (ROOT / name for name in ("docs", "benchmark", "examples", "tools"))
    for page in [*ROOT.glob("*.md"), *(page for folder in folders for page in folder.rglob("*.md"))]:
        for target, anchor in LINK.findall(FENCED.sub("", page.read_text())):
            file = page.parent / target if target else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                yield f"{page.relative_to(ROOT)}: {target}#{anchor} leads nowhere"


def environment_read_without_lock() -> Iterator[str]:
    """std::getenv races with a thread that changes the environment; c10::utils::get_env waits for it."""
    for path in sorted((ROOT / "src").rglob("*")):
        if path.is_file() and "getenv(" in path.read_text():
            yield f"{path.relative_to(ROOT)}: call c10::utils::get_env, not getenv"


def sources_that_nothing_compiles() -> Iterator[str]:
    """Sources are listed, not globbed. Each way to build the example operators has a list of its own."""
    library, tests = [ROOT / "CMakeLists.txt", *ROOT.glob("cmake/*.cmake")], ROOT / "test" / "CMakeLists.txt"
    example = ROOT / "examples" / "operators"
    for root, folder, lists in (
        (ROOT, ROOT / "src", library),
        (ROOT / "test", ROOT / "test", [*library, tests]),
        (example, example / "src", [example / "CMakeLists.txt"]),
        (example, example / "src", [example / "sources.py"]),
    ):
        listed = "".join(path.read_text() for path in lists)
        for path in [*folder.rglob("*.cpp"), *folder.rglob("*.cu")]:
            if "consumer" not in path.parts and path.relative_to(root).as_posix() not in listed:
                yield f"{path.relative_to(ROOT)}: is in none of the lists of sources"


def presets_that_make_clean_leaves() -> Iterator[str]:
    removed = dry_run("clean").stdout.split()
    for preset in json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]:
        folder = preset["binaryDir"].removeprefix("${sourceDir}/")
        if folder not in removed:
            yield f"CMakePresets.json: make clean does not remove {folder}"


CHECKS = (
    messages_that_no_source_has,
    pages_that_the_index_lacks,
    commands_that_do_not_exist,
    broken_links,
    environment_read_without_lock,
    sources_that_nothing_compiles,
    presets_that_make_clean_leaves,
)

if __name__ == "__main__":
    faults = [fault for check in CHECKS for fault in check()]
    print(*faults, sep="\n", end="\n" if faults else "")
    sys.exit(bool(faults))
