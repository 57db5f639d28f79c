"""`tilegrad completion SHELL`: a script that completes words, made of the parser itself.

All words are in the script: a key press starts no Python, which would import torch.
"""

from __future__ import annotations

import argparse
from shlex import quote

from ..models import NETWORKS

HOW = {
    "bash": 'eval "$(tilegrad completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(tilegrad completion zsh)" in ~/.zshrc',
    "fish": "tilegrad completion fish > ~/.config/fish/completions/tilegrad.fish",
}
TAKES_MODEL = ("tiles", "plan", "verify", "record", "predict")
BASH = """_tilegrad() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
    case "${{COMP_WORDS[1]}} $before" in
{choices}
        *) case "${{COMP_WORDS[1]}}" in
{options}
        esac ;;
    esac
    [ "$COMP_CWORD" -eq 1 ] && words={commands}
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [ -z "$words" ] || [ -n "$COMPREPLY" ] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o bashdefault -o default -F _tilegrad tilegrad
"""


def register(parser: argparse.ArgumentParser) -> None:
    how = "; ".join(f"{shell}: {text}" for shell, text in HOW.items())
    parser.add_argument("shell", choices=tuple(HOW), metavar="SHELL", help=how.replace("%", "%%"))
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    words = _words()
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](words), end="")
    return 0


Words = dict[str, dict[str, list[str]]]  # by command: its options, each with the values that it may have


def _words() -> Words:
    from . import COMMANDS, _parser

    found: Words = {}
    for name in COMMANDS:
        command = _parser(name).command
        assert command is not None
        actions = [a for a in command._actions if a.help != argparse.SUPPRESS]
        found[name] = {text: list(map(str, a.choices or ())) for a in actions for text in a.option_strings}
        named = [list(map(str, a.choices)) for a in actions if not a.option_strings and a.choices is not None]
        found[name][""] = [*(NETWORKS if name in TAKES_MODEL else ()), *(word for words in named for word in words)]
    return found


def _bash(words: Words) -> str:
    choices, options = [], []
    for command, each in words.items():
        options.append(
            f"            {command}) words={quote(' '.join(text for text in (*each, *each['']) if text))} ;;"
        )
        for option, values in each.items():
            if option and values:
                choices.append(f"        {quote(f'{command} {option}')}) words={quote(' '.join(values))} ;;")
    lines = {"choices": "\n".join(choices), "options": "\n".join(options), "commands": quote(" ".join(words))}
    return BASH.format(**lines)


def _zsh(words: Words) -> str:
    return f"autoload -Uz bashcompinit && bashcompinit\n{_bash(words)}"


def _fish(words: Words) -> str:
    lines = [f"complete -c tilegrad -n __fish_use_subcommand -f -a {quote(' '.join(words))}"]
    for command, each in words.items():
        here = f"complete -c tilegrad -n '__fish_seen_subcommand_from {command}'"
        for option, values in each.items():
            name = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}" if option else ""
            told = f" -x -a {quote(' '.join(values))}" if values and option else f" -a {quote(' '.join(values))}"
            lines += [f"{here} {name}{told if values else ''}"] if name or values else []
    return "\n".join(lines) + "\n"
