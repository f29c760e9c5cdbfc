"""Keeps secrets, values that are named as such, out of what is written and printed.

A name is secret by its last word: WANDB_API_KEY, slurm_token, hfToken; not key_heads, not tokens.
"""

import re
import shlex
import sys
from collections.abc import Sequence

HIDDEN = "[redacted]"
WORD = r"(?i:api_?key|key|token|secret|passw(?:or)?d|passphrase)"
CAMEL = r"(?:Key|Token|Secret|Passw(?:or)?d|Passphrase)"  # hfToken, not monkey
NAME = rf"(?<![\w.-])(?:(?:[\w.-]*[._-])?{WORD}|[\w.-]*[a-z0-9]{CAMEL})(?![\w.-])"
# What is quoted or in brackets goes to its end, or to that of a text that was cut; other values to
# the next space, for a password may hold any sign, but for a few that end a sentence or a list.
QUOTES = r"""[bru]?(?:"(?:\\.|[^"\\])*(?:"|\\?\Z)|'(?:\\.|[^'\\])*(?:'|\\?\Z))"""
BRACKETS = r"(?:\[[^\]]*(?:\]|\Z)|\{[^}]*(?:\}|\Z)|\([^)]*(?:\)|\Z))"
VALUE = rf"""(?:{QUOTES}|{BRACKETS}|\S+?(?=[,;:)\]}}'"]{{0,3}}(?:\s|\Z)))"""
GIVEN = re.compile(rf"({NAME}[ \t]*=(?!=)[ \t]*|(?=--){NAME}\s+){VALUE}", re.DOTALL)
QUOTED = re.compile(rf"""(["']{NAME}["']\s*:\s*){VALUE}""", re.DOTALL)
URL = re.compile(r"(\w://)(?:[^\s/@]*:\S{0,500}|[^/\s@]+)@")  # a user's name and password
ARGUMENT = re.compile(rf"(-*{NAME}=).*", re.DOTALL)
FLAG = re.compile(rf"(?=--){NAME}")  # its value is the next argument


def redacted(text: str) -> str:
    """The text with HIDDEN for values of `NAME=value`, `--NAME value`, `"NAME": value`, in URLs."""
    for pattern, instead in ((GIVEN, HIDDEN), (QUOTED, HIDDEN), (URL, f"{HIDDEN}@")):
        text = pattern.sub(rf"\1{instead}", text)
    return text


def command(module: str, arguments: Sequence[str]) -> str:
    """`python -m module arguments`, to be copied into a shell, without the secrets in it."""
    return _joined(["-m", module], arguments)


def started(module: str) -> str:
    """The command of this process: `module`'s, or that of a file run in its place, which may add
    mechanisms that the module alone does not know."""
    main = sys.modules["__main__"]
    in_place = main.__spec__ is None and hasattr(main, "__file__")
    return _joined([sys.argv[0]] if in_place else ["-m", module], sys.argv[1:])


def _joined(what: Sequence[str], arguments: Sequence[str]) -> str:
    # a secret argument whole, for its value may have spaces
    kept = [ARGUMENT.sub(rf"\1{HIDDEN}", a) if ARGUMENT.fullmatch(a) else a for a in arguments]
    follows = [False, *map(bool, map(FLAG.fullmatch, arguments))]
    kept = [HIDDEN if secret else redacted(a) for a, secret in zip(kept, follows)]
    return shlex.join(["python", *what, *kept])
