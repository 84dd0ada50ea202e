"""The edits of config.yaml and .env: as small as can be, and exactly undone."""

from __future__ import annotations

import difflib

import pytest
import yaml

from bdh_bridge.operator.install import config_file, env_file

NAME = "bdh-hermes-bridge"

CONFIGS = {
    "empty": "",
    "comments only": "# nothing yet\n",
    "no plugins": "model: {default: x}  # mine\nagent:\n  max_turns: 5\n",
    "no line end": "model: x",
    "plugins null": "plugins:   # later\nmodel: x\n",
    "plugins tilde": "plugins: ~\nmodel: x\n",
    "plugins empty": "plugins: {}\nmodel: x\n",
    "no enabled": "plugins:\n    # why\n    entries:\n      a: {b: true}\nmodel: x\n",
    "enabled null": "plugins:\n  enabled:\n  entries: {}\n",
    "enabled empty": "plugins:\n  enabled: []   # none\n",
    "block list": "plugins:\n  enabled:\n    - one   # first\n    # between\n    - 'two'\n"
    "\n# end\nm: 1\n",
    "block list at the column of its key": "plugins:\n  enabled:\n  - one\n  - two\nmodel: x\n",
    "block list at the end without a line end": "plugins:\n  enabled:\n    - one",
    "flow list": "plugins: {enabled: [one, two], disabled: [three]}\n",
    "flow list over lines": "plugins:\n  enabled: [\n    one,\n    two\n  ]\n",
    "flow mapping without": "plugins: {disabled: [three]}\n",
    "all flow": "{model: x}\n",
    "windows": "# hi\r\nplugins:\r\n  enabled:\r\n    - one\r\n",
    "byte order mark": "\ufeffplugins:\n  enabled:\n    - one\n",
    "quotes and odd text": 'a: "é ☃ # no comment"\nplugins:\n  enabled: ["x", \'y\']\n'
    "z: |\n  - text\n",
}


@pytest.mark.parametrize("name", CONFIGS)
def test_enabling_changes_the_list_and_nothing_else(name: str) -> None:
    text = CONFIGS[name]
    assert not config_file.is_enabled(text, NAME)
    after = config_file.enable(text, NAME)
    assert config_file.is_enabled(after, NAME)
    before_parsed, after_parsed = yaml.safe_load(text) or {}, yaml.safe_load(after)
    enabled = ((before_parsed.get("plugins") or {}).get("enabled")) or []
    assert after_parsed["plugins"]["enabled"] == [*enabled, NAME]
    for key in set(before_parsed) - {"plugins"}:
        assert after_parsed[key] == before_parsed[key]
    # Every comment and every line that was there is still there.
    gone = [
        line[2:]
        for line in difflib.ndiff(text.splitlines(), after.splitlines())
        if line.startswith("- ")
    ]
    assert len(gone) <= 1, gone
    for comment in ("# mine", "# later", "# why", "# none", "# first", "# between", "# end"):
        assert (comment in text) == (comment in after)
    assert ("\r\n" in text) == ("\r\n" in after)
    assert config_file.enable(after, NAME) == after
    withdrawn = config_file.withdraw(after, NAME)
    assert (yaml.safe_load(withdrawn)["plugins"]["enabled"] or []) == enabled


def test_a_disabled_plugin_is_enabled_again() -> None:
    for text in (
        f"plugins:\n  enabled: [one]\n  disabled:\n    - {NAME}\n    - other\n",
        f"plugins:\n  disabled: [{NAME}]\n",
        f"plugins:\n  disabled: [other, {NAME}]\n  enabled:\n    - {NAME}\n",
    ):
        after = config_file.enable(text, NAME)
        assert config_file.is_enabled(after, NAME)


@pytest.mark.parametrize(
    "text",
    [
        "plugins: [",
        "- a list\n",
        "plugins: text\n",
        "plugins:\n  enabled: text\n",
        "shared: &s [one]\nplugins:\n  enabled: *s\n",
        "a: 1\n---\nb: 2\n",
    ],
)
def test_what_it_does_not_master_is_refused(text: str) -> None:
    with pytest.raises(config_file.ConfigEditError):
        config_file.enable(text, NAME)


ENVS = ["", "A=1\n", "A=1", "# c\r\nA=1\r\n", "A=1\n\n\n", "BDH_API_URL=http://old\nB='x y'\n"]


@pytest.mark.parametrize("text", ENVS)
def test_the_block_of_env_comes_and_goes(text: str) -> None:
    wanted = {"BDH_API_URL": "http://127.0.0.1:8643", "BDH_API_TOKEN": 'a\'b $HOME #\\x "q"'}
    after = env_file.with_block(text, wanted)
    found = env_file.values(after)
    assert {name: found[name] for name in wanted} == wanted
    assert env_file.block(after) == wanted
    assert env_file.with_block(after, wanted) == after
    assert env_file.without_block(after) == (
        text if not text or text.endswith("\n") else text + "\n"
    )
    changed = env_file.with_block(after, {"BDH_API_URL": "http://new"})
    assert env_file.block(changed) == {"BDH_API_URL": "http://new"}
    with pytest.raises(ValueError, match="one line"):
        env_file.with_block("", {"X": "a\nb"})
