"""Is there a Hermes, does it see the plugin once, and can it import it?"""

from __future__ import annotations

from collections.abc import Iterator

import bdh_bridge
from bdh_bridge.operator import hermes as finder
from bdh_bridge.operator.doctor.checks import Check, Subject, failed, ok, warning

_NAME = bdh_bridge.DISTRIBUTION


def hermes(subject: Subject) -> Iterator[Check]:
    found = subject.hermes
    if found is None:
        yield failed(
            "hermes",
            subject.hermes_error,
            "install hermes-agent, or name its Python: --hermes-python PATH",
        )
        return
    if not found.version:
        yield failed(
            "hermes",
            f"{found.python} has no hermes-agent",
            "name the Python of Hermes' environment: --hermes-python PATH",
        )
        return
    where = f"hermes-agent {found.version}, Python {found.python_version} ({found.python})"
    if finder.is_too_old(found.version):
        oldest = ".".join(map(str, finder.OLDEST))
        yield failed("hermes", f"{where}: too old", f"upgrade hermes-agent to {oldest} or later")
    elif not finder.is_supported(found.version):
        newest = ".".join(map(str, finder.NEWEST))
        yield warning("hermes", f"{where}: newer than what was tested ({newest}.x)")
    else:
        yield ok("hermes", where)
    home = subject.loaded.paths.hermes_home
    if not home.is_dir():
        yield failed(
            "home", f"{home} does not exist", "start hermes once, or name a home: --home DIR"
        )
    elif found.config_error:
        yield failed("home", f"{home / 'config.yaml'}: {found.config_error}", "mend it by hand")
    elif not found.config_exists:
        yield warning("home", f"{home} has no config.yaml yet", "run: hermes setup")
    else:
        yield ok("home", str(home))


def plugin(subject: Subject) -> Iterator[Check]:
    found = subject.hermes
    if found is None:
        return
    points = [point for point in found.entry_points if point.name == _NAME]
    clones = found.clones_of(_NAME)
    yield from _seen(subject, points, clones)
    if _NAME in found.disabled:
        yield failed(
            "enabled",
            f"{_NAME} is listed in plugins.disabled, which wins",
            f"run: hermes plugins enable {_NAME} --no-allow-tool-override",
        )
    elif not {_NAME, *(clone.path.name for clone in clones)} & found.enabled:
        if found.config_error:
            return  # said already
        yield failed(
            "enabled", f"{_NAME} is not listed in plugins.enabled", "run: bdh-bridge install"
        )
    else:
        yield ok("enabled", f"plugins.enabled lists {_NAME}")


def _seen(
    subject: Subject, points: list[finder.EntryPoint], clones: list[finder.Clone]
) -> Iterator[Check]:
    found = subject.hermes
    assert found is not None
    for name in finder.PLUGINS:
        rivals = sorted(
            {
                f"{point.distribution} {point.version}"
                for point in found.entry_points
                if point.name == name and not point.ours
            }
        )
        if rivals:
            yield failed(
                "rival",
                f"{' and '.join(rivals)} registers the plugin name {name}, too",
                f"run: bdh-bridge install --migrate, or uninstall {rivals[0].split()[0]}",
            )
    published = [clone for clone in clones if not clone.ours]
    for clone in published:
        version = clone.version or "of unknown version"
        yield warning(
            "rival",
            f"the published bridge {version} is still in {clone.path}",
            "run: bdh-bridge install --migrate",
        )
    for stray in found.clones:
        if stray.name not in finder.PLUGINS and {stray.name, stray.path.name} & found.enabled:
            yield failed(
                "rival",
                f"{stray.path} is another bridge, enabled as {stray.name}: both read and write",
                f"run: hermes plugins disable {stray.name}",
            )
    own = [clone for clone in clones if clone.ours]
    packages = [point for point in points if point.ours]
    if packages and own:
        yield warning(
            "plugin",
            f"both the package {packages[0].version} and the clone {own[0].path} are there; "
            "Hermes takes the package",
            f"remove the clone, or run: {found.python} -m pip uninstall {_NAME}",
        )
    elif packages:
        yield ok("plugin", f"package {packages[0].version}")
    elif own:
        yield ok("plugin", f"clone {own[0].version} in {own[0].path}")
    elif not points and not published:
        yield failed(
            "plugin",
            "Hermes does not see the plugin: no package in its environment, no clone in its home",
            f"run: {bdh_bridge.install_command(found.python, _NAME)}",
        )


def dependencies(subject: Subject) -> Iterator[Check]:
    found = subject.hermes
    if found is None:
        return
    if found.missing:
        listed = (f"'{name}'" for name in found.missing)
        yield failed(
            "dependencies",
            f"missing in Hermes' environment: {', '.join(found.missing)}",
            f"run: {bdh_bridge.install_command(found.python, *listed)}",
        )
    else:
        yield ok("dependencies", "all there")
