"""Which scripts of a repository are tried: by a rule that knows nothing of how they will fare."""

import ast
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# A script trains if it says one of these.
TRAINS = (b"GradientTape", b".fit(", b"train_on_batch(", b".minimize(")


def candidates(checkout: Path, trains: tuple[bytes, ...] = TRAINS) -> Iterator[Path]:
    """Yields the files of a checkout, by path, that train, do something when they are run, and import what is installed here.

    One that says the same as another before it, but for comments and spaces, is left out.
    """
    seen: set[str] = set()
    for path in sorted(checkout.rglob("*.py")):
        source = path.read_bytes()
        if not any(word in source for word in trains):
            continue
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        same = hashlib.sha256(re.sub(rb"#.*|\s+", b"", source)).hexdigest()
        if same not in seen and _does_something(tree) and not _missing(tree, path.parent):
            seen.add(same)
            yield path


def _does_something(tree: ast.Module) -> bool:
    """Whether anything but definitions stands at the top."""
    docstring = ast.Constant
    statements = [s for s in tree.body if not (isinstance(s, ast.Expr) and isinstance(s.value, docstring))]
    return any(isinstance(s, ast.For | ast.While | ast.Expr | ast.If | ast.With) for s in statements)


def _missing(tree: ast.Module, folder: Path) -> bool:
    """Whether a module that is imported is neither installed nor beside the script."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    beside = {name for name in names if (folder / f"{name}.py").exists() or (folder / name).is_dir()}
    return any(_is_missing(name) for name in names - beside)


def _is_missing(name: str) -> bool:
    return name not in sys.stdlib_module_names and importlib.util.find_spec(name) is None
