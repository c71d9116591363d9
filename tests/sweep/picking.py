"""Which scripts of a repository are tried: by a rule that knows nothing of how they will fare."""

import ast
import hashlib
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Came with the tools that make the documents' pages, after the list was made: scripts that import it are none of it.
_NOT_OF_THE_PROJECT = {"IPython"}
_STAND_INS = Path(__file__).parent / "stand_ins"
# A script trains if it says one of these.
TRAINS = (b"GradientTape", b".fit(", b"train_on_batch(", b".minimize(")


@dataclass(frozen=True)
class Candidate:
    """A script.

    Attributes:
        folders: Of its repository, those in which modules are that are not beside it.
    """

    path: Path
    folders: tuple[Path, ...]


def candidates(checkout: Path, trains: tuple[bytes, ...] = TRAINS) -> Iterator[Candidate]:
    """Yields the files of a checkout, by path, that train, do something when they are run, and import what is there.

    That is: what is installed here, has a stand-in, or is in the checkout. A file that says the same as another before it, but
    for comments and spaces, is left out.
    """
    seen: set[str] = set()
    files = sorted(checkout.rglob("*.py"))
    for path in files:
        source = path.read_bytes()
        if not any(word in source for word in trains):
            continue
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            continue
        same = hashlib.sha256(re.sub(rb"#.*|\s+", b"", source)).hexdigest()
        if same in seen or not _does_something(tree):
            continue
        places = [_place(name, path.parent, checkout, files) for name in _imported(tree)]
        if None not in places:
            seen.add(same)
            yield Candidate(path, tuple(sorted({place for place in places if place and place != path.parent})))


def _does_something(tree: ast.Module) -> bool:
    """Whether anything but definitions stands at the top."""
    docstring = ast.Constant
    statements = [s for s in tree.body if not (isinstance(s, ast.Expr) and isinstance(s.value, docstring))]
    return any(isinstance(s, ast.For | ast.While | ast.Expr | ast.If | ast.With) for s in statements)


def _imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


def _place(name: str, folder: Path, checkout: Path, files: list[Path]) -> Path | None:
    """Returns the folder in which a module is, `folder` for those that are installed; None if there is no such module."""
    if (folder / f"{name}.py").exists() or (folder / name).is_dir() or name in sys.stdlib_module_names:
        return folder
    is_installed = name not in _NOT_OF_THE_PROJECT and importlib.util.find_spec(name)
    if is_installed or importlib.machinery.PathFinder.find_spec(name, [str(_STAND_INS)]):
        return folder
    holders = [file.parent for file in files if file.stem == name]
    holders += [
        parent.parent for file in files for parent in file.parents if parent.name == name and checkout in parent.parents
    ]
    return min(holders, key=lambda each: (len(each.parts), each), default=None)
