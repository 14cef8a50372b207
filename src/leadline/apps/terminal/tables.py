"""Tables of a benchmark on the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from leadline.bench.render import format_row
from leadline.bench.tables import Table


def table_console() -> Console:
    """A console as wide as the terminal, or of 240 characters if the output is not a terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=240)


def rich_table(table: Table) -> RichTable:
    """The table for a console, with the best numbers in bold."""
    shown = RichTable(title=table.title, title_justify="left", title_style="bold", header_style="")
    shown.add_column(table.corner)
    for column in table.columns:
        head = f"{column.group}\n{column.head}" if column.group else column.head
        shown.add_column(Text(head), justify="right", no_wrap=True)
    marked = table.marked()
    for b, block in enumerate(table.blocks):
        if block.title:
            shown.add_row(Text(block.title, style="italic"))
        for r, row in enumerate(block.rows):
            cells = [
                Text(text, style="bold" if (b, r, c) in marked else "")
                for c, text in enumerate(format_row(table.columns, block, row.values))
            ]
            shown.add_row(Text(row.label), *cells, end_section=r == len(block.rows) - 1)
    return shown
