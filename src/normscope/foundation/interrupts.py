"""Contexts whose beginning and end an interrupt cannot cut in two.

Python calls the handler of a signal between two steps of the main thread, and that of Ctrl-C raises
KeyboardInterrupt there: between two lines that change something, between two that restore it, or
where ``__exit__`` has been called and has not begun. What has then been changed stays changed.

Contexts that change something which outlasts them (a model, a tokenizer, settings of torch) are
therefore made with :func:`shielded` instead of ``contextlib.contextmanager``. Signals that arrive
while such a context is entered or left are handled when it has been. The block itself can be
interrupted anywhere.
"""

from __future__ import annotations

import functools
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import CodeType, FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

Yielded = TypeVar("Yielded")
ContextArguments = ParamSpec("ContextArguments")
SignalHandler = Callable[[int, FrameType | None], Any]

# Signals whose handlers may raise: Ctrl-C, what ends a process, and the alarms of time limits.
_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK", "SIGALRM")
_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]

_waiting: dict[int, SignalHandler] = {}  # signals that have arrived, and are not handled yet
_open = 0  # shielded contexts that the main thread has entered
_wrapped: list[tuple[int, _DeferringHandler]] = []  # handlers while there are any


def shielded(
    function: Callable[ContextArguments, Iterator[Yielded]],
) -> Callable[ContextArguments, AbstractContextManager[Yielded]]:
    """Make a context manager of a generator, like ``contextmanager``, that signals do not cut.

    In the main thread, handlers that are Python functions are wrapped while the outermost of such
    blocks runs, which takes some ten microseconds. A handler is called at once unless the context
    is being entered or left; then it is called afterwards, and if it raises on entering, the
    context is left again. In other threads no handler runs, so nothing is done there. An exception
    that another thread sets (``PyThreadState_SetAsyncExc``) cannot be deferred; if it is raised
    before the end of the generator has begun, the generator is closed with its last reference.

    What is before and after the ``yield`` must be short: a second Ctrl-C waits for it as well.
    """
    make = contextmanager(function)

    @functools.wraps(function)
    def context(
        *args: ContextArguments.args, **kwargs: ContextArguments.kwargs
    ) -> AbstractContextManager[Yielded]:
        return _Shielded(make(*args, **kwargs))

    return context


class _Shielded(AbstractContextManager[Yielded]):
    """Enters and leaves another context while signals wait."""

    def __init__(self, manager: AbstractContextManager[Yielded]) -> None:
        self._manager, self._counted = manager, False

    def __enter__(self) -> Yielded:
        self._counted = _wrap_handlers()
        try:
            value = self._manager.__enter__()
        except BaseException:
            self._end()
            raise
        if _waiting:
            try:
                _handle_waiting()
            except BaseException as error:
                self.__exit__(type(error), error, error.__traceback__)
                raise
        return value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            return self._manager.__exit__(kind, error, trace)
        finally:
            self._end()

    def _end(self) -> None:
        try:
            if self._counted:
                _unwrap_handlers()
        finally:
            if _waiting:
                _handle_waiting()


# A signal that arrives when one of these has been called, and has not begun, finds its frame too.
_SHIELDS: frozenset[CodeType] = frozenset(  # not those of a decorator, which checks types
    inspect.unwrap(method).__code__ for method in (_Shielded.__enter__, _Shielded.__exit__)
)


def _is_shielded(frame: FrameType | None) -> bool:
    """Return whether a shielded context is being entered or left in a frame or its callers."""
    while frame is not None:
        if frame.f_code in _SHIELDS:
            return True
        frame = frame.f_back
    return False


class _DeferringHandler:
    """The handler of a signal, which waits while a shielded context is entered or left."""

    def __init__(self, handler: SignalHandler) -> None:
        self.handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _is_shielded(frame):
            _waiting[number] = self.handler
        else:
            self.handler(number, frame)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _wrap_handlers() -> bool:
    """Have the signals wait where they must; return whether this is the thread that gets them."""
    global _open
    if not _in_main_thread():
        return False
    try:
        for number in [] if _open else _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and not isinstance(handler, _DeferringHandler):
                wrapped = _DeferringHandler(handler)
                _wrapped.append((number, wrapped))
                signal.signal(number, wrapped)
    except ValueError:  # the main thread of another interpreter, which gets no signals
        _wrapped.clear()
        return False
    except BaseException:  # of a handler that was not wrapped yet
        _restore_handlers()
        raise
    _open += 1
    return True


def _unwrap_handlers() -> None:
    """Restore the handlers when the last context has been left; contexts may end in any order."""
    global _open
    _open -= 1
    if _open or not _in_main_thread():  # if another thread ends the last one, they stay wrapped
        return
    try:
        _restore_handlers()
    except BaseException:  # of a handler that was restored already
        _restore_handlers()
        raise


def _restore_handlers() -> None:
    while _wrapped:
        number, wrapped = _wrapped[-1]  # Ctrl-C last: it waits until all are restored
        present: object = signal.getsignal(number)
        if present is wrapped:  # the block may have set another one
            signal.signal(number, wrapped.handler)
        _wrapped.pop()


def _handle_waiting() -> None:
    """Handle the signals that have arrived, unless a context around this one is not finished."""
    around: FrameType | None = sys._getframe(1)
    while around is not None and around.f_code not in _SHIELDS:
        around = around.f_back
    if around is None or _is_shielded(around.f_back) or not _in_main_thread():
        return
    while _waiting:
        number, handler = _waiting.popitem()
        try:
            handler(number, around.f_back)
        except BaseException:
            _handle_waiting()
            raise
