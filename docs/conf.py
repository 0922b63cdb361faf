"""Configuration of the documentation site, which `scripts/docs` builds without a network."""

import os
import sys
import warnings
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import matplotlib

matplotlib.use("agg")
# For the commands that the examples run.
os.environ["PYTHONPATH"] = str(HERE.parent)
warnings.filterwarnings("ignore", message="FigureCanvasAgg is non-interactive")

project = "trinat"
author = "the trinat developers"
version = release = version_of("trinat")
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["examples/*"]
# Indented blocks are commands; GitHub shows them alike.
highlight_language = "bash"
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
# Convert quotes and dots only: "--quiet" in a sentence must not become a dash.
smartquotes_action = "qe"

default_role = "code"
autodoc_typehints = "none"  # docstrings name types, shapes and units
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

html_theme = "pydata_sphinx_theme"
html_title = "trinat"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_context = {"default_mode": "auto"}
html_sidebars = {page: [] for page in ("index", "install", "questions")}
html_theme_options = {
    "logo": {"text": "trinat"},
    "header_links_before_dropdown": 7,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_nav_level": 1,
}
copyright = "the trinat developers; Apache-2.0. For research, not for diagnosis"

# The clone may be in a folder with a space in its name.
suppress_warnings = ["sphinx_gallery.space_in_filename"]
sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "auto_examples",
    "filename_pattern": "/plot_",
    "within_subsection_order": "FileNameSortKey",
    "remove_config_comments": True,
    "write_computation_times": False,
    "default_thumb_file": str(HERE / "images/segmentation.jpg"),
    "show_memory": False,
    "download_all_examples": False,
    "plot_gallery": not tags.has("quick"),  # noqa: F821
    "matplotlib_animations": False,
}


def _fill_in(app, docname, content):
    """Insert the generated parts that a page asks for."""
    import generated

    content[0] = generated.fill_in(content[0])


def _no_signature(app, what, name, *_):
    """Hide the signature of results, segmenters and opened stores, which users do not construct."""
    if name in ("trinat.OpenedStore", "trinat.Result", "trinat.Segmenter"):
        return "", None
    return None


def setup(app):
    """Connect the hooks to Sphinx."""
    app.connect("source-read", _fill_in)
    app.connect("autodoc-process-signature", _no_signature)
