"""From generated text to what may be shown: stop strings, and characters that an earlier attempt already delivered."""

from workers.engines.base import EngineRequest
from workers.engines.stopping import StopMatcher


class Output:
    """The visible side of one answer. `stopped` is set once a stop string is complete."""

    __slots__ = ("_matcher", "_skip")

    def __init__(self, request: EngineRequest) -> None:
        self._matcher = StopMatcher(request.stop)
        self._skip = request.resume.delivered_chars if request.resume is not None else 0

    @property
    def stopped(self) -> bool:
        """True once a stop string is complete: nothing more will be shown."""
        return self._matcher.hit is not None

    def push(self, text: str) -> str:
        """What may be shown now, less what was delivered before."""
        return self._undelivered(self._matcher.push(text))

    def flush(self) -> str:
        """What was held back as a possible stop string, at the end of the answer."""
        return self._undelivered(self._matcher.flush())

    def _undelivered(self, text: str) -> str:
        if not self._skip:
            return text
        cut = min(self._skip, len(text))
        self._skip -= cut
        return text[cut:]
