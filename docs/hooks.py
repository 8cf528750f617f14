"""Hooks of the documentation site (mkdocs.yml): pages that are made from other files of the checkout.

The pages of docs/ are written for GitHub and for the site. Links to code, such as `../antiphon/engine.py`,
lead to a copy of the file in the site. So the site needs no address of a repository, and works offline.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

import antiphon

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]+)(#[^)\s]*)?\)")
IMAGES = (".svg", ".png")
SHOWN_AS = {".py": "python", ".yaml": "yaml", ".json": "json", ".toml": "toml", ".jsonl": "json"}
MARKUP = re.compile(r"(<pre.*?</pre>|<code>.*?</code>|<[^>]+>)", re.DOTALL)
TAG = re.compile(r"(<[^>]+>)")
FIGURES = re.compile(r"(?<=\d) (?=%)|(?<=\w) (?==\s[\d−])|(?<=\w\s=) (?=[\d−])|(?<=\d,) (?=[\d.−+]+\])")
NAME = re.compile(r"(?<!\S)\S{1,40}(?!\S)")  # longer ones do not fit into a line of a phone
HEAD_OF_CODE = "---\nsearch: {exclude: true}\nhide: [navigation, toc]\n---\n\n"


# --- Where a file of the checkout is in the site --------------------------------------------------


def site_page(path: str) -> str:
    """Return the page of the site that shows a file of the checkout, both relative to their roots."""
    if path == "README.md":
        return "index.md"
    if path == "docs/tutorial.ipynb":
        return "tutorial.md"
    if path.endswith(".md") or path.endswith(IMAGES):
        return path.removeprefix("docs/")
    return f"code/{path}.md"


def change_prose(change: Callable[[str], str], text: str) -> str:
    """Apply a change to a page, except to its fenced blocks of code."""
    return "".join(part if part.startswith("```") else change(part) for part in FENCE.split(text))


def targets(text: str, path: str) -> Iterator[str]:
    """The files of the checkout that a page links to. `path` is the page's file."""
    for part in FENCE.split(text):
        if not part.startswith("```"):
            for _, target, _ in LINK.findall(part):
                if "://" not in target and not target.startswith("mailto:"):
                    yield posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def title_of(path: str) -> str:
    """Return the title of a page of the checkout; the site shows it where a page names the file."""
    found = re.search(r"^# (.+)$", (ROOT / path).read_text(), re.MULTILINE)
    return found[1] if found else path


def relinked(text: str, path: str) -> str:
    """Rewrite the links of a page, from files of the checkout to pages of the site."""
    here = posixpath.dirname(site_page(path)) or "."

    def relink(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if posixpath.basename(label.strip("[]")) == posixpath.basename(file) and file.endswith(".md"):
            label = f"[{title_of(file)}]"
        return f"{label}({posixpath.relpath(site_page(file), here)}{anchor})"

    return change_prose(lambda part: LINK.sub(relink, part), text)


def indented(text: str) -> str:
    """Indent nested lists by four spaces a level, as Python-Markdown needs; GitHub takes two or three."""

    def indent(match: re.Match[str]) -> str:
        return " " * 4 * (len(match[0]) // 2 if len(match[0]) > 3 else 1)

    return change_prose(lambda part: re.sub(r"^ {2,6}(?=\S)", indent, part, flags=re.MULTILINE), text)


def kept_together(html: str) -> str:
    """Let no line of a page break within 95 %, ε = 2 or [1.5, 2.5], nor within a name in code.

    >>> kept_together("<p>95 % of <code>--set a-b</code>")
    '<p>95\\xa0% of <code><span class="name">--set</span> <span class="name">a-b</span></code>'
    >>> kept_together('<code><a href="x.html">Path</a></code>')
    '<code><a href="x.html"><span class="name">Path</span></a></code>'
    """
    return "".join(_kept_together(part) for part in MARKUP.split(html))


def _kept_together(part: str) -> str:
    if not part.startswith("<"):
        return FIGURES.sub("\N{NO-BREAK SPACE}", part)
    if not part.startswith("<code>"):
        return part
    body = part.removeprefix("<code>").removesuffix("</code>")
    parts = [
        inner if inner.startswith("<") else NAME.sub(r'<span class="name">\g<0></span>', inner)
        for inner in TAG.split(body)
    ]
    return f"<code>{''.join(parts)}</code>"


# --- Pages that are made --------------------------------------------------------------------------


def code_page(path: str) -> str:
    """A file of code as a page."""
    language = SHOWN_AS.get(posixpath.splitext(path)[1], "text")
    text = (ROOT / path).read_text()
    fence = "`" * 4
    return f"{HEAD_OF_CODE}# {posixpath.basename(path)}\n\n`{path}`\n\n{fence}{language}\n{text}{fence}\n"


def notebook_page(notebook: dict[str, Any]) -> str:
    """A notebook as a page: its text, and its code in fenced blocks."""
    cells = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        cells.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(cells) + "\n"


def api_page() -> str:
    """The reference of the public names of `antiphon`, for mkdocstrings to fill."""
    lines = ["# Python API", "", (antiphon.__doc__ or "").partition("\n\n")[2], ""]
    for name in sorted(antiphon.__all__, key=str.lower):
        module = antiphon._MODULES.get(name, name)  # some packages are their function too
        lines += [f"::: antiphon.{module}.{name}", "    options:", f"      heading: antiphon.{name}"]
        lines += [f"      toc_label: {name}", ""]
    return "\n".join(lines)


class CodeExamples(Extension):
    """Show the lines below "Example:" in a docstring as code."""

    def on_object(self, *, obj: Object, **more: Any) -> None:
        if obj.docstring and "\nExample:\n" in obj.docstring.value:
            text, example = obj.docstring.value.split("\nExample:\n")
            body = "    ```python\n" + example.rstrip() + "\n    ```"
            obj.docstring.value = f"{text}\nExample:\n{body}"


# --- Hooks ----------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages that the navigation does not name to "How to"."""
    listed = set(re.findall(r"[\w-]+\.md", json.dumps(config.nav)))
    for section in config.nav or []:
        if "How to" in section:
            pages = sorted(page.name for page in Path(config.docs_dir).glob("*.md"))
            section["How to"] += [page for page in pages if page not in listed]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the made pages: code and pages that are linked to, the notebook, the reference."""
    notebook = json.loads((ROOT / "docs" / "tutorial.ipynb").read_text())
    files.append(File.generated(config, "tutorial.md", content=indented(notebook_page(notebook))))
    files.append(File.generated(config, "api.md", content=api_page()))
    waiting = ["CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"]
    waiting += [f"docs/{file.name}" for file in sorted((ROOT / "docs").glob("*.md"))]
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.endswith(".md"):
            if not path.endswith((*IMAGES, ".ipynb")) and (ROOT / path).is_file():
                _add(files, config, site_page(path), code_page(path))
            continue
        text = (ROOT / path).read_text()
        if not path.startswith("docs/") and path != "README.md":
            _add(files, config, site_page(path), indented(relinked(text, path)))
        new = set(targets(text, path)) - seen
        seen |= new
        waiting += sorted(new)
    return files


def _add(files: Files, config: MkDocsConfig, uri: str, content: str) -> None:
    level = InclusionLevel.INCLUDED if "/" not in uri else InclusionLevel.NOT_IN_NAV
    files.append(File.generated(config, uri, content=content, inclusion=level))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead the links of a page of docs/ to pages of the site."""
    if page.file.generated_by:
        return markdown
    return indented(relinked(markdown, f"docs/{page.file.src_uri}"))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep figures and names in one line."""
    return html if page.file.src_uri.startswith("code/") else kept_together(html)
