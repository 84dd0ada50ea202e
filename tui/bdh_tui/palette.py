"""What the command palette finds: the application's commands, whose names are no markup."""

from __future__ import annotations

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content


class Commands(Provider):
    """The library's own takes names for markup; a saved filter may hold any brackets."""

    async def discover(self) -> Hits:
        for name, told, use, shown in self.app.get_system_commands(self.screen):
            if shown:
                yield DiscoveryHit(Content(name), use, text=name, help=told)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, told, use, _ in self.app.get_system_commands(self.screen):
            score, places = matcher.fuzzy_search.match(query, name)
            if score > 0:
                found = Content(name)
                for place in places:
                    found = found.stylize("bold underline", place, place + 1)
                yield Hit(score, found, use, text=name, help=told)
