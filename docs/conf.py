# SPDX-License-Identifier: Apache-2.0
"""The documentation site: ``make docs`` builds it into build/docs."""

import importlib
import inspect
import os
import sys
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from sphinx.pycode import ModuleAnalyzer  # noqa: E402

import skest  # noqa: E402
from tests.test_public_names import MODULES  # noqa: E402

project = "skest"
copyright = "The skest developers"
version = release = skest.__version__
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates"]
exclude_patterns = ["_templates", "**/sg_execution_times.rst", "sg_execution_times.rst"]
default_role = "py:obj"
smartquotes = False  # values are quoted, and options have two hyphens

myst_heading_anchors = 3
autodoc_typehints = "none"  # types are in the docstrings
numpydoc_show_class_members = False  # the template of a class lists them
toc_object_entries_show_parents = "hide"

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    # Others are programs for the command line.
    "ignore_pattern": r"^(?!plot_)",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "nested_sections": False,
}
# Examples are short, and say so.
warnings.filterwarnings("ignore", message="The training of this")

html_theme = "pydata_sphinx_theme"
html_title = "skest"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "show_toc_level": 2,
    "header_links_before_dropdown": 6,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}
html_sidebars = {"index": [], "howto": [], "migration": []}
html_show_sourcelink = False
html_copy_source = False


def write_api_pages() -> None:
    """Write a page for each public module; autosummary makes one of each name."""
    pages = {}
    written: set[int] = set()
    for module in map(importlib.import_module, MODULES):
        title = module.__name__
        names = [
            name
            for name in module.__all__
            if name != "__version__" and id(getattr(module, name)) not in written
        ]
        written.update(id(getattr(module, name)) for name in names)
        if not names:
            continue
        summary = " ".join((module.__doc__ or "").partition("\n\n")[0].split())
        pages[title] = [
            *(title, "=" * len(title), "", f".. currentmodule:: {title}", ""),
            *(summary, "", ".. autosummary::", "   :toctree: .", "   :nosignatures:"),
            *("", *(f"   {name}" for name in names), ""),
        ]
        pages |= {f"{title}.{name}": None for name in names}
    title, modules = "API reference", [page for page, lines in pages.items() if lines]
    pages["index"] = [
        *(title, "=" * len(title), ""),
        *(f":doc:`{page}`\n    {pages[page][5]}\n" for page in modules),
        *(".. toctree::", "   :hidden:", "", *(f"   {page}" for page in modules), ""),
    ]
    folder = HERE / "api"
    folder.mkdir(exist_ok=True)
    for file in folder.glob("*.rst"):
        if file.stem not in pages:  # of a name that is gone
            file.unlink()
    for page, lines in pages.items():
        file, text = folder / f"{page}.rst", "\n".join(lines or [])
        if lines and not (file.exists() and file.read_text() == text):
            file.write_text(text)


def skip_what_is_not_ours(app, what, name, obj, skip, options):
    """Leave out what a class inherits from scikit-learn, torch and Python."""
    function = getattr(obj, "fget", None) or getattr(obj, "__func__", obj)
    module = getattr(function, "__module__", None) or ""
    if what == "class" and callable(function) and not module.startswith("skest"):
        return True
    return None


def signature_of_class(app, what, name, obj, options, signature, returns):
    """Show the parameters of a class also where Python's `__init__` hides them."""
    if what != "class" or signature not in ("(*args, **kwargs)", "(*args: Any)"):
        return None
    parameters = inspect.signature(obj).parameters.values()
    plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    return str(inspect.Signature(plain)), None


def comment_of_constant(app, what, name, obj, options, lines):
    """Take the comment of a constant from the module that defines it."""
    if what != "data":
        return
    attribute = name.rpartition(".")[2]
    for module in [name for name in sys.modules if name.startswith("skest.")]:
        if vars(sys.modules[module]).get(attribute) is obj:
            comments = ModuleAnalyzer.for_module(module).find_attr_docs()
            if ("", attribute) in comments:
                lines[:] = comments["", attribute]


def setup(app):
    """Write the pages of the API before sphinx looks for them."""
    write_api_pages()
    app.connect("autodoc-skip-member", skip_what_is_not_ours)
    app.connect("autodoc-process-docstring", comment_of_constant)
    app.connect("autodoc-process-signature", signature_of_class)
