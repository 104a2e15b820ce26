"""The site: ``sphinx-build -W -c docs . build/site`` in the project's folder, after ``pip install -e ".[docs]"``.

Pages are read where they lie, so that links between them hold in the repository and on the site. Nothing is fetched:
the theme brings what it needs, and names of other projects are looked up in the short list of ``site_names``.
"""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

import site_docstrings  # noqa: E402
import site_formulas  # noqa: E402
import site_names  # noqa: E402
import site_pages  # noqa: E402

import fedconvex  # noqa: E402

project = "fedconvex"
author = "The fedconvex developers"
project_copyright = author
version = release = fedconvex.__version__
root_doc = "docs/index"
include_patterns = [
    *("docs/**", "benchmarks/README.md", "benchmarks/benchopt/README.md"),
    *("CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md"),
]
exclude_patterns = ["docs/additions", "docs/_static", "docs/gallery/*.ipynb", "docs/gallery/*.py", "build", ".venv"]
extensions = [
    *("sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.intersphinx", "numpydoc", "myst_parser"),
    "sphinx_gallery.gen_gallery",
]
nitpicky = False
intersphinx_mapping = site_names.inventories(DOCS.parent / "build" / "inventories")
default_role = "py:obj"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_heading_slug_func = "site_pages.slug"
suppress_warnings = ["myst.header"]  # a page of the repository may begin a section deeper than its first

autosummary_generate = False
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
numpydoc_show_class_members = False
numpydoc_xref_param_type = True
numpydoc_xref_aliases = site_names.aliases()
numpydoc_xref_ignore = site_names.IGNORED

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "docs/gallery",
    "filename_pattern": r"/plot_",
    "nested_sections": False,
    "capture_repr": (),
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "within_subsection_order": "FileNameSortKey",
    "write_computation_times": False,
    "copyfile_regex": "",
}

html_theme = "furo"
html_title = f"fedconvex {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}


def setup(app):
    """Say what Sphinx is told by the helpers of this folder."""
    site_docstrings.setup(app)
    site_formulas.setup(app)
    site_names.setup(app)
    site_pages.setup(app)
