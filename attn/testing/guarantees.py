"""What each mechanism guarantees, the table of docs/guarantees.md: each cell is a check that ran.

`python -m attn.testing.guarantees` prints the rows, `--mechanism=NAME` those asked for, and
`--write=docs/guarantees.md` puts them in that file. Exit code 1 if a check fails.
"""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import jax

from attn import MECHANISMS
from attn.mechanism import Mechanism
from attn.testing.columns import COLUMNS, Column
from attn.testing.contract import BrokenLaw

START, END = "<!-- guarantees: python -m attn.testing.guarantees -->\n", "<!-- end -->"


def verdict(mechanism: Mechanism, column: Column) -> tuple[str, str]:
    """(cell, why it fails): a refusal must name what it refuses, and that must not be declared."""
    try:
        with jax.default_matmul_precision("highest"):
            return column.check(mechanism) or "holds", ""
    except BrokenLaw as error:
        return "FAILS", str(error)
    except Exception as error:
        refusal = isinstance(error, NotImplementedError) and column.names in str(error)
        if refusal and column.term not in mechanism.honours:
            return "refused", ""
        return "FAILS", f"raised {error!r}"


def row(name: str, mechanism: Mechanism) -> list[str]:
    """The table's line for one mechanism, then a line for each of its failures."""
    found = {title: verdict(mechanism, column) for title, column in COLUMNS.items()}
    line = f"| `{name}` | {' | '.join(cell for cell, _ in found.values())} |"
    first = lambda why: " ".join(why.split())[:300]
    return [line, *(f"* `{name}`, {t}: {first(why)}" for t, (_, why) in found.items() if why)]


def rows(text: str) -> dict[str, list[str]]:
    """The lines of each mechanism in a file's table, with those of its failures."""
    found: dict[str, list[str]] = {}
    for line in text.split(START)[1].split(END)[0].splitlines():
        if line.startswith(("| `", "* `")):
            found.setdefault(line.split("`")[1], []).append(line)
    return found


def table(lines: dict[str, list[str]]) -> str:
    """The table in Markdown, in the order of MECHANISMS, failures below it."""
    head = f"| mechanism | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}"
    known = [lines[name] for name in MECHANISMS if name in lines]
    failures = [failure for _, *failures in known for failure in failures]
    return "\n".join([head, *(line for line, *_ in known), *([""] * bool(failures)), *failures])


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the command; 0 if nothing fails."""
    parser = argparse.ArgumentParser(prog="python -m attn.testing.guarantees", allow_abbrev=False)
    parser.add_argument("--mechanism", action="append", choices=list(MECHANISMS), metavar="NAME")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the rows into its table")
    options = parser.parse_args(arguments)
    made = {}
    for name in options.mechanism or MECHANISMS:
        made[name] = row(name, MECHANISMS[name].examples()[0])
        print("\n".join(made[name]), flush=True)
        if options.write:
            text = options.write.read_text()
            before, after = text.split(START)[0], text.split(END, 1)[1]
            whole = table({**rows(text), **made})
            options.write.write_text(f"{before}{START}{whole}\n{END}{after}")
    return int(any(len(lines) > 1 for lines in made.values()))


if __name__ == "__main__":
    sys.exit(main())
