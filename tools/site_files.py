"""A hook of mkdocs: the site has the tree of the repository, its pages, and as they are the files that pages link to.

So a link is written once, relative to its page, and leads to the same file on a forge and on the site.
"""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
PAGES = ("*.md", "docs/**/*.md", "benchmarks/results/*.md", "examples/**/*.md", "charts/*/README.md")
_LINK = re.compile(r"\]\(([^)\s#:]+)")


def pages() -> list[str]:
    """Paths of all pages, relative to the repository."""
    return sorted(str(file.relative_to(ROOT)) for pattern in PAGES for file in ROOT.glob(pattern))


def targets(page: str) -> set[Path]:
    """Files and folders of the repository that a page links to."""
    file = ROOT / page
    return {(file.parent / link).resolve() for link in _LINK.findall(file.read_text())}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
    linked = set().union(*map(targets, pages()))
    folders = {folder for folder in linked if folder.is_dir() and not (folder / "README.md").exists()}
    listed = {file for folder in folders for file in folder.iterdir() if file.is_file()}
    names = {str(file.relative_to(ROOT)) for file in linked | listed if file.is_file()}
    for name in sorted(names.union(pages())):
        files.append(File(name, str(ROOT), config.site_dir, config.use_directory_urls))
    for folder in sorted(folders):
        lines = (f"- [{file.name}]({file.name})\n" for file in sorted(listed) if file.parent == folder)
        page = f"{folder.relative_to(ROOT)}/README.md"
        text = f"# {folder.relative_to(ROOT)}\n\n{''.join(lines)}"
        files.append(File.generated(config, page, content=text, inclusion=InclusionLevel.NOT_IN_NAV))
    return files
