"""``bdh-bridge completion bash|zsh|fish``: scripts made from the parsers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bdh_bridge.cli import Commands, examples

PROGRAM = "bdh-bridge"
_FUNCTION = "_bdh_bridge"


@dataclass(frozen=True)
class Level:
    """What may follow ``path``, the commands given so far (``("outbox", "list")``).

    ``commands`` and ``options`` map a word to its help; ``choices`` an option to its values;
    ``valued`` are the options that a value of any kind follows.
    """

    path: tuple[str, ...]
    commands: dict[str, str] = field(default_factory=dict)
    options: dict[str, str] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)
    valued: list[str] = field(default_factory=list)

    @property
    def place(self) -> str:
        return " ".join(self.path)


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
                level.commands[name] = helps.get(name, "").replace("%%", "%")
                below.append((name, child))
        elif action.help != argparse.SUPPRESS:
            for option in action.option_strings:
                level.options[option] = (action.help or "").replace("%%", "%")
                if action.choices:
                    level.choices[option] = [str(one) for one in action.choices]
                if action.nargs is None and action.const is None:
                    level.valued.append(option)
            if not action.option_strings and action.choices:
                level.commands.update({str(one): "" for one in action.choices})
    yield level
    for name, child in below:
        yield from levels(child, (*path, name))


def bash(tree: list[Level]) -> str:
    words = "\n".join(
        f'    "{level.place}") words="{" ".join([*level.commands, *level.options])}" ;;'
        for level in tree
    )
    return f"""\
{_FUNCTION}() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="" place="" words="" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$place|$previous" in
        {_values_follow(tree)}) previous="" && continue ;;
        esac
        previous=$word
        case "${{place:+$place }}$word" in
        {_steps(tree)}) place="${{place:+$place }}$word" ;;
        esac
    done
    case "$place|$previous" in
{_chosen(tree, 'words="{}" ;;')}
    {_values_follow(tree)}) words="" ;;
    *) case "$place" in
{words}
    esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F {_FUNCTION} {PROGRAM}
"""


def zsh(tree: list[Level]) -> str:
    def listed(words: dict[str, str]) -> str:
        return " ".join(_shell_quoted(f"{word}:{meaning}") for word, meaning in words.items())

    words = "\n".join(
        f"    '{level.place}') commands=({listed(level.commands)}) "
        f"options=({listed(level.options)}) ;;"
        for level in tree
    )
    # `path` would be the search path there.
    return f"""\
{_FUNCTION}() {{
    local previous="" place="" word
    local -a commands options
    for word in "${{(@)words[2,CURRENT-1]}}"; do
        case "$place|$previous" in
        {_values_follow(tree)}) previous="" && continue ;;
        esac
        previous=$word
        case "${{place:+$place }}$word" in
        {_steps(tree)}) place="${{place:+$place }}$word" ;;
        esac
    done
    case "$place|$previous" in
{_chosen(tree, "compadd -- {}; return ;;")}
    {_values_follow(tree)}) _files; return ;;
    esac
    case "$place" in
{words}
    esac
    if [[ $PREFIX == -* ]]; then
        _describe -o option options
    elif (( $#commands )); then
        _describe command commands
    else
        _files
    fi
}}
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit -i; }}
compdef {_FUNCTION} {PROGRAM}
"""


def _steps(tree: list[Level]) -> str:
    return " | ".join(f'"{level.place}"' for level in tree if level.path)


def _values_follow(tree: list[Level]) -> str:
    return " | ".join(f'"{level.place}|{option}"' for level in tree for option in level.valued)


def _chosen(tree: list[Level], offer: str) -> str:
    return "\n".join(
        f'    "{level.place}|{option}") {offer.format(" ".join(words))}'
        for level in tree
        for option, words in level.choices.items()
    )


def fish(tree: list[Level]) -> str:
    steps = " ".join(_fish_quoted(level.place) for level in tree if level.path)
    values = " ".join(
        _fish_quoted(f"{level.place}|{option}") for level in tree for option in level.valued
    )
    lines = [
        f"function _{_FUNCTION}_at",
        "    set -l at",
        "    set -l previous",
        "    set -l words (commandline -opc)",
        "    set -e words[1]",
        "    for word in $words",
        '        switch "$at|$previous"',
        f"            case {values}",
        "                set previous",
        "                continue",
        "        end",
        "        set previous $word",
        '        switch (string join " " -- $at $word)',
        f"            case {steps}",
        "                set -a at $word",
        "        end",
        "    end",
        '    test "$at" = "$argv"',
        "end",
        f"complete -c {PROGRAM} -f",
    ]
    for level in tree:
        lines += _fish_level(level)
    return "\n".join(lines) + "\n"


def _fish_level(level: Level) -> Iterable[str]:
    at = f"complete -c {PROGRAM} -n '_{_FUNCTION}_at {level.place}'"
    for word, meaning in level.commands.items():
        yield f"{at} -a {word} -d {_fish_quoted(meaning)}"
    for option, meaning in level.options.items():
        flag = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
        value = ""
        if option in level.choices:
            value = f" -x -a {_fish_quoted(' '.join(level.choices[option]))}"
        elif option in level.valued:
            value = " -r -F"
        yield f"{at} {flag}{value} -d {_fish_quoted(meaning)}"
    if not level.commands:
        yield f"{at} -F"


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _shell_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
