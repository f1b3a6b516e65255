"""The command: writes every page whose text differs from the file, and names it."""

from __future__ import annotations

import sys

from tools.reference.pages import FOLDER, PAGES


def main() -> None:
    """Write the pages."""
    for name, render in PAGES.items():
        path, text = FOLDER / name, render()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            sys.stdout.write(f"{path} written\n")


if __name__ == "__main__":
    main()
