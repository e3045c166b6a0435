"""Figures from data already computed. Read `style` (looks and captions), then `speedup`, `rounds`, `traffic` and `break_even`;
`inline` turns one into a part of a page, `figures` names those of each answer.

Each figure is `draw_…(axes, table) -> axes` on a slide of its own. Importing any of these modules does not import matplotlib.
"""
