"""``bdh-bridge completion bash|zsh|fish``: scripts made from the parsers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

from bdh_bridge.cli import Commands, examples

PROGRAM = "bdh-bridge"
_FUNCTION = "_bdh_bridge"


@dataclass(frozen=True)
class Level:
    """What may follow ``path``, the commands given so far (``("outbox", "list")``).

    ``commands`` and ``options`` map a word to its help; ``choices`` an option to its values.
    """

    path: tuple[str, ...]
    commands: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)


def add(commands: Commands) -> None:
    completion = commands.add_parser(
        "completion",
        help="a script that completes commands in your shell",
        **examples(
            ("completion bash >> ~/.bashrc", ""),
            ("completion zsh >> ~/.zshrc", ""),
            ("completion fish > ~/.config/fish/completions/bdh-bridge.fish", ""),
        ),
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    completion.set_defaults(command=_completion)


def _completion(args: argparse.Namespace) -> int:
    from bdh_bridge.cli import make_parser

    make = {"bash": bash, "zsh": zsh, "fish": fish}[args.shell]
    print(make(list(levels(make_parser()))), end="")
    return 0


def levels(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Level]:
    """The tree of ``parser``, commands before what is below them."""
    level = Level(path)
    below: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {one.dest: one.help or "" for one in action._choices_actions}
            for name, child in action.choices.items():
                level.commands[name] = helps.get(name, "")
                below.append((name, child))
        elif action.help != argparse.SUPPRESS:
            for option in action.option_strings:
                level.options[option] = action.help or ""
                if action.choices:
                    level.choices[option] = [str(one) for one in action.choices]
            if not action.option_strings and action.choices:
                level.commands.update({str(one): "" for one in action.choices})
    yield level
    for name, child in below:
        yield from levels(child, (*path, name))


def bash(tree: list[Level]) -> str:
    steps = " | ".join(f'"{" ".join(level.path)}"' for level in tree if level.path)
    values = "\n".join(
        f'        "{" ".join(level.path)}|{option}") words="{" ".join(words)}" ;;'
        for level in tree
        for option, words in level.choices.items()
    )
    words = "\n".join(
        f'        "{" ".join(level.path)}") words="{" ".join([*level.commands, *level.options])}";;'
        for level in tree
    )
    return f"""\
{_FUNCTION}() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local path="" words="" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "${{path:+$path }}$word" in
        {steps}) path="${{path:+$path }}$word" ;;
        esac
    done
    case "$path|$previous" in
{values}
        *) case "$path" in
{words}
        esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F {_FUNCTION} {PROGRAM}
"""


def zsh(tree: list[Level]) -> str:
    """The bash function, through zsh's own adapter."""
    return (
        "autoload -U +X compinit && compinit\n"
        "autoload -U +X bashcompinit && bashcompinit\n" + bash(tree)
    )


def fish(tree: list[Level]) -> str:
    lines = [f"complete -c {PROGRAM} -f"]
    for level in tree:
        deeper = " ".join(level.commands)
        seen = [f"__fish_seen_subcommand_from {word}" for word in level.path]
        if deeper and not level.path:
            seen.append("__fish_use_subcommand")
        elif deeper:
            seen.append(f"not __fish_seen_subcommand_from {deeper}")
        condition = f" -n {_quoted('; and '.join(seen))}" if seen else ""
        for word, meaning in level.commands.items():
            lines.append(f"complete -c {PROGRAM}{condition} -a {word} -d {_quoted(meaning)}")
        where = [one for one in seen if not one.startswith(("not ", "__fish_use"))]
        condition = f" -n {_quoted('; and '.join(where))}" if where else ""
        for option, meaning in level.options.items():
            flag = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            values = level.choices.get(option)
            chosen = f" -x -a {_quoted(' '.join(values))}" if values else ""
            lines.append(f"complete -c {PROGRAM}{condition} {flag}{chosen} -d {_quoted(meaning)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
