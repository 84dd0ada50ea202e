"""A list of lines with a cursor that draws only what is in view, however long it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.geometry import Region, Size, Spacing
from textual.message import Message
from textual.reactive import reactive
from textual.scroll_view import ScrollView
from textual.strip import Strip

#: Lines that are remembered as they were drawn.
_REMEMBERED = 1_000

Draw = Callable[[int, int], Content]
"""Index and width in cells → the line."""


class LineList(ScrollView, can_focus=True):
    """Lines drawn by ``draw``. Call :meth:`show` whenever their number or content changed."""

    DEFAULT_CSS = """
    LineList {
        height: 1fr; background: $background; overflow-x: hidden; scrollbar-size-vertical: 1;
        scrollbar-gutter: stable;
    }
    LineList > .lines--cursor { background: $block-cursor-background; }
    LineList > .lines--cursor-away { background: $panel; }
    """
    COMPONENT_CLASSES: ClassVar[set[str]] = {"lines--cursor", "lines--cursor-away"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "Up", show=False),
        Binding("down,j", "move(1)", "Down", show=False),
        Binding("pageup", "page(-1)", "Page up", show=False),
        Binding("pagedown", "page(1)", "Page down", show=False),
        Binding("home,g", "jump(0)", "First", show=False),
        Binding("end,G", "jump(-1)", "Last", show=False),
    ]

    cursor: reactive[int] = reactive(0)

    class Highlighted(Message):
        """The cursor is on another line now."""

        def __init__(self, lines: LineList, index: int) -> None:
            super().__init__()
            self.lines = lines
            self.index = index

        @property
        def control(self) -> LineList:
            return self.lines

    class Activated(Highlighted):
        """Enter was pressed, or the line under the cursor was clicked again."""

    def __init__(
        self,
        draw: Draw,
        *,
        of: Callable[[int], object] | None = None,
        empty: str = "",
        id: str | None = None,  # noqa: A002 (Textual's own name)
    ) -> None:
        super().__init__(id=id)
        self._draw = draw
        self._of = of
        """The immutable object that a line is drawn from: as long as it is the same, so is the
        line. Lists that are drawn anew many times a second say so."""
        self._drawn: dict[int, tuple[object, int, Strip]] = {}
        self._look: tuple[object, str] | None = None
        self.empty = empty
        """What is said where there is no line."""
        self.count = 0

    def show(self, count: int, *, cursor: int | None = None, keep: int = 0) -> None:
        """There are ``count`` lines now. ``keep`` lines came in above the ones in view."""
        self.count = count
        self.virtual_size = Size(self.scrollable_content_region.width, max(count, 1))
        wanted = self.cursor + keep if cursor is None else cursor
        if keep:
            self.scroll_to(y=self.scroll_offset.y + keep, animate=False, force=True)
        with self.prevent(LineList.Highlighted):
            self.set_reactive(LineList.cursor, max(0, min(wanted, count - 1)))
        self.refresh()

    def select(self, index: int) -> None:
        """Put the cursor on a line and bring it into view."""
        self.cursor = index

    def render_lines(self, crop: Region) -> list[Strip]:
        """Lines as they are remembered. The library remembers places, and in a list that moves
        each place holds another line each time: that is most of the work of a busy screen."""
        self._forget_other_looks()
        if self.styles.gutter != Spacing():
            return super().render_lines(crop)
        width, outer = self.scrollable_content_region.width, self.size.width
        filters, background = self.get_line_filters(), self.background_colors[1]
        strips = []
        for y in crop.line_range:
            strip = self._line(y, width, outer)
            for one in filters:
                strip = strip.apply_filter(one, background)
            strips.append(strip)
        if crop.column_span == (0, outer):
            return strips
        return [strip.crop(*crop.column_span) for strip in strips]

    def render_line(self, y: int) -> Strip:
        return self._line(y, self.scrollable_content_region.width, self.size.width)

    def _line(self, y: int, width: int, outer: int) -> Strip:
        """``width`` cells of text, and then, up to ``outer``, the scroll bar's place."""
        index = y + self.scroll_offset.y
        if index >= self.count:
            text = f"  {self.empty}" if not self.count and y == 1 else ""
            return self._strip(Content(text), width, outer, False)
        marked = index == self.cursor
        if self._of is None or marked:
            return self._strip(self._draw(index, width), width, outer, marked)
        source = self._of(index)
        known = self._drawn.get(id(source))
        if known is not None and known[0] is source and known[1] == outer:
            return known[2]
        strip = self._strip(self._draw(index, width), width, outer, marked)
        if len(self._drawn) > _REMEMBERED:
            self._drawn.clear()
        self._drawn[id(source)] = (source, outer, strip)
        return strip

    def _forget_other_looks(self) -> None:
        """Not with every change of style: the focus comes and goes, and changes none of these."""
        look = (self.visual_style, self.app.theme)
        if look != self._look:
            self._look = look
            self._drawn.clear()

    def _strip(self, content: Content, width: int, outer: int, marked: bool) -> Strip:
        base = self.visual_style
        if marked:
            name = "lines--cursor" if self.has_focus else "lines--cursor-away"
            base = base + self.get_visual_style(name)
        parse = self.app.stylesheet.parse_style
        pieces = content.truncate(width).render(base, "", parse)
        strip = Strip([Segment(text, style.rich_style) for text, style in pieces])
        strip = strip.adjust_cell_length(width, base.rich_style)
        return strip.adjust_cell_length(outer, self.visual_style.rich_style)

    # Moving about

    def validate_cursor(self, cursor: int) -> int:
        return max(0, min(cursor, self.count - 1))

    def watch_cursor(self, before: int, cursor: int) -> None:
        if before != cursor and self.count:
            self.reveal(cursor)
            self.refresh()
            self.post_message(self.Highlighted(self, cursor))

    def reveal(self, index: int) -> None:
        width = self.scrollable_content_region.width
        self.scroll_to_region(Region(0, index, width, 1), animate=False, force=True)

    def action_move(self, step: int) -> None:
        self.cursor += step

    def action_page(self, direction: int) -> None:
        self.cursor += direction * max(1, self.scrollable_content_region.height - 1)

    def action_jump(self, index: int) -> None:
        self.cursor = index if index >= 0 else self.count - 1

    def action_activate(self) -> None:
        if self.count:
            self.post_message(self.Activated(self, self.cursor))

    def on_click(self, event: events.Click) -> None:
        index = event.y + self.scroll_offset.y
        if 0 <= index < self.count:
            again = index == self.cursor
            self.cursor = index
            if again:
                self.action_activate()

    def on_resize(self) -> None:
        self.virtual_size = Size(self.scrollable_content_region.width, max(self.count, 1))

    def on_focus(self) -> None:
        self.refresh()

    def on_blur(self) -> None:
        self.refresh()
