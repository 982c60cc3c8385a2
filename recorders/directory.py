"""A folder that shows invocations as Markdown, nested as they were called. Written live or at once: the same
events in the same order give equal bytes.

    overview.md                 outcome, inputs, totals, a line a turn, links to children
    trace.md                    the whole conversation
    iter_N/code.py, output.txt  the code as it ran, and what it printed (or the traceback of its `raise`)
    iter_N/sub_COMPONENT/       a child that turn N started, and so on; one without a turn stands beside the turns

Give it a folder of its own: files of other runs stay where they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from types import TracebackType

from jaz_actors.events import Event, InvokeEnter
from jaz_actors.ids import InvokeId
from jaz_actors.recorders.markdown import section
from jaz_actors.recorders.overview import Page


class Directory:
    """Writes as events come. Use as a context manager, or `close()` at the end.

    path:  the folder; made if need be.
    all:   also later roots than the one seen first, each in `root_PATH`.

    An overview is rewritten when something of it has changed by an eighth, when its invocation ends, and by `close`.
    """

    def __init__(self, path: str | os.PathLike[str], *, all: bool = False) -> None:  # noqa: A002
        self._files = _Files(Path(path))
        self._all = all
        self._live = True
        self._first: InvokeId | None = None
        self._pages: dict[str, Page] = {}
        self._held: dict[str, list[Event]] = {}  # by the parent whose place is not known yet

    def add(self, event: Event) -> None:
        invoke_id = InvokeId.parse(event.invoke_id)
        if not self._wanted(invoke_id.root):
            return
        page = self._pages.get(event.invoke_id)
        if page is None:
            parent = invoke_id.parent
            if parent is not None and str(parent) not in self._pages:
                self._held.setdefault(str(parent), []).append(event)
                return
            page = self._open(invoke_id, self._folder(invoke_id, event))
        self._tell(page, event)
        for held in self._held.pop(event.invoke_id, ()):
            self.add(held)

    def close(self) -> None:
        """Write what is still to be written. Invocations whose parent was never seen get a folder of their own."""
        for parent in sorted(self._held, key=lambda text: text.count(".")):  # those above first
            for event in self._held.pop(parent, ()):
                invoke_id = InvokeId.parse(event.invoke_id)
                if event.invoke_id not in self._pages:
                    self._open(invoke_id, PurePosixPath(f"lost_parent_{_safe(invoke_id.path)}"))
                self.add(event)
        for page in self._pages.values():
            if page.changes:
                self._write_overview(page)
        self._files.publish()

    def __enter__(self) -> Directory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _wanted(self, root: InvokeId) -> bool:
        if self._first is None:
            self._first = root
        return self._all or root == self._first

    def _folder(self, invoke_id: InvokeId, event: Event) -> PurePosixPath:
        parent = invoke_id.parent
        if parent is None:
            return self._root_folder(invoke_id)
        iteration = event.parent_iteration if isinstance(event, InvokeEnter) else None
        turn = "" if iteration is None else f"iter_{iteration}"
        return self._pages[str(parent)].folder / turn / f"sub_{_safe(invoke_id.path.rpartition('.')[2])}"

    def _root_folder(self, root: InvokeId) -> PurePosixPath:
        assert self._first is not None
        if root == self._first:
            return PurePosixPath()
        run = "" if root.run == self._first.run else f"{_safe(root.run)}_"
        return PurePosixPath(f"root_{run}{_safe(root.path)}")

    def _open(self, invoke_id: InvokeId, folder: PurePosixPath) -> Page:
        page = self._pages[str(invoke_id)] = Page(invoke_id, folder, self._pages.get(str(invoke_id.parent)))
        return page

    def _tell(self, page: Page, event: Event) -> None:
        text = "".join(section(entry, 2) for entry in page.add(event))
        if text:
            self._files.append(page.folder / "trace.md", text, live=self._live)
        for name, content in page.new_files(event):
            self._files.write(page.folder / name, content)
        above: Page | None = page
        while self._live and above is not None:
            if above.overview_due:
                self._write_overview(above)
            above = above.parent

    def _write_overview(self, page: Page) -> None:
        self._files.write(page.folder / "overview.md", page.overview())
        page.written()


def write_directory(
    path: str | os.PathLike[str],
    events: Iterable[Event],
    *,
    all: bool = False,  # noqa: A002
) -> None:
    """The same files from recorded events; each appears whole."""
    with Directory(path, all=all) as directory:
        directory._live = False
        for event in events:
            directory.add(event)


def _safe(name: str) -> str:
    """Path components are safe file names; ids made elsewhere may not be."""
    return re.sub(r"[^A-Za-z0-9_.\-]|^\.+", "_", name)


class _Files:
    """Files below one folder. Owned by a Directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._begun: set[PurePosixPath] = set()
        self._parts: list[Path] = []

    def append(self, name: PurePosixPath, text: str, *, live: bool) -> None:
        """Add to a file, begun afresh by the first call; what is not `live` grows beside it until `publish`."""
        path = self._made(name)
        if not live:
            path = path.with_name(f".{path.name}.part")
        mode = "ab" if name in self._begun else "wb"
        if mode == "wb":
            self._begun.add(name)
            if not live:
                self._parts.append(path)
        with path.open(mode) as file:
            file.write(_encoded(text))

    def write(self, name: PurePosixPath, text: str) -> None:
        path = self._made(name)
        part = path.with_name(f".{path.name}.part")
        part.write_bytes(_encoded(text))
        part.replace(path)

    def publish(self) -> None:
        for part in self._parts:
            part.replace(part.with_name(part.name.removeprefix(".").removesuffix(".part")))
        self._parts.clear()

    def _made(self, name: PurePosixPath) -> Path:
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
