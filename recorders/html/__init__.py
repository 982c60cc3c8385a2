"""One HTML page of a run: the tree, its timeline, every turn. A view of the events; knows no journal and no runtime."""

from jaz_actors.recorders.html.page import page

__all__ = ["page"]
