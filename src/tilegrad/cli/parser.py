"""What the command line understands, and what it says of a word that it does not: what was meant, if it is near."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any, NoReturn

from ..errors import InputError, one_of

_CHOICE = re.compile(r"argument (.+?): invalid choice: '?(.*?)'? \(choose from (.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """A parser whose errors read as all others of ours. Options are not abbreviated: a typo might be another one."""

    command: Parser | None = None  # that of the command that is wanted

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **{**settings, "allow_abbrev": False})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words, own = self.split(list(sys.argv[1:] if args is None else args))
        found, others = super().parse_known_args(words, namespace)
        found.script = own
        return found, others

    def split(self, words: list[str]) -> tuple[list[str], list[str]]:
        """`record [options] SCRIPT.py [its own arguments]`: what comes behind the script is not ours."""
        if self.command is None or not self.command.prog.endswith(" record"):
            return words, []
        end = next((at for at, word in enumerate(words, start=1) if word.endswith(".py")), len(words))
        return words[:end], words[end:]

    def error(self, message: str) -> NoReturn:
        choice = _CHOICE.fullmatch(message)
        if choice is None:
            raise InputError(message, where=self.prog, hint=f"{self.prog} --help")
        what, given, offers = choice.groups()
        said = f"there is no command '{given}'" if what == "COMMAND" else f"{what} {given} is not possible"
        raise InputError(said, where=self.prog, hint=one_of(given, re.findall(r"[^,'\s]+", offers)))

    def actions(self) -> list[argparse.Action]:
        """With those of parsers behind a second word."""
        inner = [each for a in self._actions if isinstance(a.choices, Mapping) for each in a.choices.values()]
        return [*self._actions, *(action for each in inner for action in each.actions())]


def parse(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """The words, understood; `given` names the options that are among them."""
    asked = parser.command or parser
    named = [word.partition("=")[0] for word in parser.split(list(words))[0] if word.startswith("-")]
    offers = {text: a for a in asked.actions() for text in a.option_strings}
    for name in named if parser.command is not None else ():
        if name.startswith("--") and name not in offers:
            shown = [text for text, action in offers.items() if action.help != argparse.SUPPRESS]
            raise InputError(f"there is no option '{name}'", where=asked.prog, hint=one_of(name, shown))
    args, others = parser.parse_known_args(words)
    if others:
        what, before = f"'{others[0]}' is one word too many", words[max(0, words.index(others[0]) - 1)]
        hint = f"--json > {quote(others[0])}" if before == "--json" else f"{asked.prog} --help"
        raise InputError(what, where=asked.prog, hint=hint)
    args.given = frozenset(offers[name].dest for name in named if name in offers)
    return args


def refuse_idle(args: argparse.Namespace, names: Sequence[str], when: str, hint: str) -> None:
    """Options that would change nothing here are no options."""
    for name in names:
        if name in args.given:
            raise InputError(f"--{name.replace('_', '-')} has no effect {when}", hint=hint)


def add_shared(parser: argparse.ArgumentParser, *, again: bool = False) -> None:
    """What every command understands. `again`: behind the second word of a command, too, and there without a word."""
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS} if again else {}
    what = {"help": "show the Python traceback of an error"}
    parser.add_argument("--debug", action="store_true", **{**what, **hidden})
    what = {"help": "no tables, notes or progress: only files, JSON and errors"}
    parser.add_argument("--quiet", action="store_true", **{**what, **hidden})
    what = {"default": "warning", "help": "what is logged (default: warning)"}
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), **{**what, **hidden})
