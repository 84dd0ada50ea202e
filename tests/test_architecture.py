"""Who may know whom, held to the code; and the picture that is drawn from it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "architecture.svg"


def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "architecture_script", ROOT / "scripts" / "architecture.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


script = _script()
IMPORTS = script.read()


def reached(start: str) -> set[str]:
    """Every module that importing and running ``start`` may load, by whatever way."""
    found, left = set(), [start]
    while left:
        module = left.pop()
        if module in found:
            continue
        found.add(module)
        parents = [module.rsplit(".", n)[0] for n in range(1, module.count(".") + 1)]
        direct = [b for a, b in IMPORTS.edges if a == module and (a, b) not in script.DOOR]
        left += [*parents, *direct]
    return found


def below(*packages: str) -> set[str]:
    return {m for m in IMPORTS.modules if any(m == p or m.startswith(f"{p}.") for p in packages)}


def test_the_picture_is_current() -> None:
    drawn = script.draw(IMPORTS)
    assert drawn == PICTURE.read_text(encoding="utf-8"), (
        "run: python scripts/architecture.py docs/images/architecture.svg"
    )


def test_parts_do_not_import_in_a_circle() -> None:
    assert script.depths(script.between_parts(IMPORTS))["plugin"] == 0
    circle = script.between_parts(IMPORTS)
    circle["bdh_otel", "plugin"] = 1
    with pytest.raises(ValueError, match=r"circle: .*bdh_otel"):
        script.depths(circle)


CORE = below("bdh_bridge.gates", "bdh_bridge.routing", "bdh_bridge.graph", "bdh_bridge.outbox")


def test_gates_routing_graph_and_outbox_know_nothing_of_hermes() -> None:
    pytest.importorskip("hermes_cli")
    hermes = script.hermes_modules()
    assert {"hermes_cli", "gateway", "agent", "tools", "cron"} <= hermes
    knowing = {module for module, name in IMPORTS.foreign if name in hermes}
    assert knowing & CORE == set()
    # All who do, so that another one is a decision.
    assert {module for module in knowing if not module.startswith("hermes_borgee")} <= {
        "bdh_bridge.plugin",
        "bdh_bridge.hooks",
        "bdh_bridge.author",
        "bdh_bridge.caller",
        "bdh_bridge.host",
        "bdh_bridge.operator.install.migrate",
    }
    assert any(module.startswith("hermes_borgee") for module in knowing)


def test_gates_routing_graph_and_outbox_know_nobody_above_them() -> None:
    above = below("bdh_bridge.cli", "bdh_bridge.operator", "bdh_bridge.worker", "bdh_tui")
    above |= below("hermes_borgee") | {
        f"bdh_bridge.{name}" for name in ("plugin", "hooks", "homes", "slash", "caller", "bridge")
    }
    for module in CORE:
        assert reached(module) & above == set(), module


def test_the_telemetry_package_knows_nothing_of_the_bridge() -> None:
    for module in below("bdh_otel"):
        assert reached(module) <= below("bdh_otel"), module


def test_the_terminal_ui_reaches_neither_hooks_nor_plugin() -> None:
    for module in below("bdh_tui"):
        assert reached(module) & {"bdh_bridge.hooks", "bdh_bridge.plugin"} == set(), module


def test_imports_inside_functions_count_and_those_for_types_do_not(tmp_path: Path) -> None:
    import ast

    text = (
        "import a\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    import b\nelse:\n    import e\n"
        "def f():\n    try:\n        from c import d\n    except ImportError:\n        pass\n"
    )
    assert set(script._imported(ast.parse(text))) == {"a", "typing.TYPE_CHECKING", "c.d"}


def test_a_module_of_no_part_is_named() -> None:
    with pytest.raises(KeyError, match=r"bdh_bridge\.brand_new belongs to no part"):
        script.part_of("bdh_bridge.brand_new")
    assert script.part_of("bdh_bridge.gates.brand_new").name == "gates"
    assert {script.part_of(module).name for module in IMPORTS.modules} == {
        part.name for part in script.PARTS
    }
