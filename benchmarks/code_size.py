# SPDX-License-Identifier: Apache-2.0
"""Print how much code there is: python -m benchmarks.code_size.

Code lines are lines with a token that is no comment, docstring or layout.
"""

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYOUT = {
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_of(node: ast.AST) -> set[int]:
    return set(range(node.lineno, node.end_lineno + 1))


def docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            yield node.body[0]


def counts(source: str) -> dict[str, int]:
    """Return the numbers of lines of code, of imports and with comments."""
    tree = ast.parse(source)
    of_docstrings = {(d.lineno, d.col_offset) for d in docstrings(tree)}
    code, comments = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in LAYOUT and token.start not in of_docstrings:
            code.update(range(token.start[0], token.end[0] + 1))
    comments -= {1}  # the license
    imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
    in_imports = set().union(*map(lines_of, imports)) & code
    return {"code": len(code), "imports": len(in_imports), "comments": len(comments)}


def table(folder: str) -> str:
    """Return files, code lines and the shares of imports and comments per package."""
    sizes: dict[str, list[dict[str, int]]] = defaultdict(list)
    for path in sorted((ROOT / folder).rglob("*.py")):
        package = "/".join(path.relative_to(ROOT).parts[:-1][:2])
        sizes[package].append(counts(path.read_text(encoding="utf-8")))
    sizes["all of " + folder] = [each for some in sizes.values() for each in some]
    lines = [f"{folder:28} files    code  imports  comments per line"]
    for package, files in sizes.items():
        total = {name: sum(f[name] for f in files) for name in files[0]}
        share, comments = (
            total[name] / max(total["code"], 1) for name in ("imports", "comments")
        )
        size = f"{len(files):5d} {total['code']:7,d}"
        lines.append(f"{package:28} {size} {share:8.1%} {comments:8.3f}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table("skest"))
    print(table("tests").splitlines()[-1])
