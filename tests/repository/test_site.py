"""The documentation as a site: each link and each anchor of each page leads somewhere, and search is on."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_site_is_built_and_its_links_and_anchors_lead_somewhere(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    pages = {str(page.relative_to(ROOT).with_suffix("")) for page in (ROOT / "docs").rglob("[!R]*.md")}
    assert {page for page in pages if not (tmp_path / page / "index.html").exists()} == set()
    assert (tmp_path / "docs" / "guides" / "clusters" / "argocd-health.lua").is_file()
    index = json.loads((tmp_path / "search" / "search_index.json").read_text())
    assert pages <= {entry["location"].split("#")[0].rstrip("/") for entry in index["docs"]}
