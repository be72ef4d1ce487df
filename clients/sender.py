"""The open-loop client: sends every request at its intended time, whatever the replies do, and stamps the replies."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from clients.arrivals import share
from clients.workloads import Prompt, common_start, expected_tokens, limits, shared_probes
from protocol import messages as m
from protocol.clock import (
    MS,
    SECOND,
    Offset,
    ceil_ms,
    now,
    quiet_collector,
    spin_before,
    wake_lag,
)
from protocol.messages import ChatTurn, Message
from protocol.priority import CLIENT_RANK, cores_awake, run_first, spinning, stay_in_memory, tighten_timers
from protocol.process import StopRequest
from protocol.records import ClientRecord, RecordWriter, RequestRecord
from protocol.roundtrip import clock_record, measure_offset
from protocol.wire import PeerSlow, carriers, dealer, fresh_instance

BEAT = SECOND * 3 // 5
ANSWERED = BEAT // 2  # the router's beat is answered at once, so that an idle client wakes up for both together
SILENCE = 3 * SECOND
HELLO_EVERY = SECOND // 5
LOST_AFTER = 2 * SECOND
QUIET = 2 * MS
LAST_SPIN = MS // 5  # more than the router takes for a message, too little for it to wait long
TOKENIZE_AT_ONCE, CHARACTERS_AT_ONCE = 64, 2**20


Turns = tuple[ChatTurn, ...]
Tokens = tuple[int, ...]


class ClientError(Exception):
    """The run cannot go on for this client; one line that says why."""


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """What one client process is started with. `times` (nanoseconds from time zero) and `prompts` are the
    union's, by id; `start_timeout` in seconds."""

    router: str
    run: str
    cell: str
    index: int
    of: int
    out: Path
    times: Sequence[int]
    prompts: Sequence[Prompt]
    max_tokens: int
    ignore_eos: bool
    share_prefix: bool = False
    margins: bool = False
    start_timeout: float = 60.0
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Reply:
    """What came back for one request so far; times in nanoseconds of this process's clock."""

    id: int
    intended: int
    sent: int
    first: int | None = None
    last: int | None = None
    messages: list[tuple[int, int]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    margins: list[float] | None = None
    text: list[str] = field(default_factory=list)

    def take(self, row: m.Row, at: int) -> None:
        """A message that carries neither tokens nor text stamps nothing, unless it is all there is of the reply; one
        without text is not the first word."""
        if row.text and self.first is None:
            self.first = at
        if row.tokens or row.text or (row.finish is not None and self.last is None):
            self.last = at
            self.messages.append((at, len(row.tokens)))
        self.tokens += row.tokens
        if row.margins is not None:
            self.margins = [*(self.margins or ()), *row.margins]
        self.text.append(row.text)

    def record(self, cell: str, end: str, detail: str | None, finish: str | None) -> RequestRecord:
        return RequestRecord(
            cell,
            self.id,
            intended=self.intended,
            sent=self.sent,
            first_received=self.first,
            last_received=self.last,
            messages=tuple(self.messages),
            tokens=tuple(self.tokens),
            margins=None if self.margins is None else tuple(self.margins),
            text="".join(self.text),
            end=end,
            detail=detail,
            finish=finish,
        )


class Client:
    """One client process of a cell, from HELLO to BYE."""

    def __init__(self, settings: ClientSettings, stop: StopRequest) -> None:
        """Raises OSError when the records cannot be written, ValueError when the arrivals cannot be made."""
        tighten_timers()
        self.scheduling = run_first(CLIENT_RANK)
        self.settings, self.stop = settings, stop
        self.schedule = share(settings.times, settings.index, settings.of)
        self.records = RecordWriter(settings.out / f"{settings.cell}.client-{settings.index}.msgpack", alone=True)
        self.context = carriers(CLIENT_RANK)
        self.line = dealer(self.context, settings.router, settings.run)
        self.instance = fresh_instance()
        self.welcome: m.Welcome | None = None
        self.tokenized: dict[int, m.Tokenized] = {}
        self.zero: int | None = None
        self.offset: Offset | None = None
        self.spin = self.wake_lag = 0
        self.cores_awake = False
        self.open: dict[int, Reply] = {}
        self.held: deque[tuple[bytes, int]] = deque()
        self.sent = 0
        self.heard = self.beaten = self.last_sent = now()
        self.missing_since: int | None = None
        self.leaving: str | None = None

    # --- the whole of it ---

    def run(self) -> str | None:
        """None when everything was sent and every reply ended, else why not. Raises ClientError before the start;
        what was measured is kept."""
        try:
            with cores_awake() as self.cores_awake:
                return self._live()
        finally:
            self.line.close()
            self.context.term()
            self.records.close()

    def _live(self) -> str | None:
        self.wake_lag = wake_lag()
        self.spin = spin_before(self.wake_lag, self.scheduling)
        self._join()
        submits = self._prepare()
        self._await_start()
        self._write_head()
        quiet_collector()
        stay_in_memory()
        self._hold(now() + QUIET)  # once for practice: the first time takes longer
        self._send_all(submits)
        return self._part()

    # --- before the start ---

    def _join(self) -> None:
        deadline = now() + round(self.settings.start_timeout * SECOND)
        hailed = 0
        while self.welcome is None:
            if now() > deadline:
                raise ClientError(f"no router answered at {self.settings.router}; start one with: headway router")
            if now() - hailed >= HELLO_EVERY and self.line.connected:
                hailed = now()
                self._say(m.Hello("client", self.instance, self.settings.index, self.settings.of))
            self._turn()

    def _prepare(self) -> list[bytes | None]:
        """Every Submit of this client's share, encoded beforehand; None for one too large to send."""
        s = self.settings
        prompts = [s.prompts[id] for id, _ in self.schedule]
        probes = [turns for prompt in prompts for turns in shared_probes(prompt)] if s.share_prefix else []
        tokens = self._tokenize([*[prompt.turns for prompt in prompts], *probes])
        measured = measure_offset(self.line, self._take)
        self._keep_clock("before", measured)
        self.offset = measured
        submits = [
            self._encoded(self._submit_of(id, prompt, tokens))
            for (id, _), prompt in zip(self.schedule, prompts, strict=True)
        ]
        lengths = tuple(sorted({len(tokens[prompt.turns]) for prompt in prompts}))
        self._say(m.ClientReady(len(submits), lengths))
        return submits

    def _submit_of(self, id: int, prompt: Prompt, tokens: Mapping[Turns, Tokens]) -> m.Submit:
        s, own = self.settings, tokens[prompt.turns]
        probes = [tokens[turns] for turns in shared_probes(prompt)] if s.share_prefix else []
        most, ignore = limits(prompt, s.max_tokens, s.ignore_eos)
        return m.Submit(
            id=id,
            user=prompt.user or f"user-{id}",
            tokens=own,
            max_tokens=most,
            ignore_eos=ignore,
            expected_tokens=expected_tokens(prompt, s.max_tokens, s.ignore_eos),
            priority=prompt.priority,
            deadline=prompt.deadline_s,
            margins=s.margins,
            prefix=common_start([own, *probes]) if probes else 0,
        )

    def _tokenize(self, conversations: Sequence[Turns]) -> dict[Turns, Tokens]:
        """Prompt tokens of each different conversation, by the worker."""
        different = list(dict.fromkeys(conversations))
        found: dict[Turns, Tokens] = {}
        while len(found) < len(different):
            asked = _some(different[len(found) :])
            answer = self._ask(m.Tokenize(len(found), asked))
            if answer.error is not None or len(answer.prompts) != len(asked):
                raise ClientError(f"the prompts could not be tokenized: {answer.error}")
            found |= zip(asked, answer.prompts, strict=True)
        return found

    def _ask(self, question: m.Tokenize) -> m.Tokenized:
        try:
            self._say(question)
        except ValueError as error:
            raise ClientError(f"a prompt is too large: {error}") from None
        while question.batch not in self.tokenized:
            self._turn()
        return self.tokenized.pop(question.batch)

    def _encoded(self, submit: m.Submit) -> bytes | None:
        try:
            return self.line.encoded(submit)
        except ValueError:
            return None

    def _await_start(self) -> None:
        while self.zero is None:
            self._turn()

    def _write_head(self) -> None:
        s, zero = self.settings, self.zero
        self.records.write(
            ClientRecord(
                cell=s.cell,
                index=s.index,
                of=s.of,
                requests=len(s.prompts),
                zero=zero,
                spin_ns=self.spin,
                scheduling=self.scheduling,
                wake_lag_ns=self.wake_lag,
                cores_awake=self.cores_awake,
                plan=s.facts,
                ids=tuple(id for id, _ in self.schedule),
                intended=tuple(time + (zero or 0) for _, time in self.schedule),
            )
        )

    def _turn(self) -> None:
        """One look at the socket before the start. Raises ClientError when there is no point in waiting."""
        self.line.wait(ceil_ms(HELLO_EVERY if self.welcome is None else BEAT))
        while (message := self.line.receive()) is not None:
            self._take(message)
        self._beat()
        if self.stop.requested:
            raise ClientError("stopped before the start")
        if self.leaving is not None:
            raise ClientError(self.leaving)
        if self.welcome is not None and now() - self.heard > SILENCE:
            raise ClientError("the router has not been heard for 3 s")

    # --- sending ---

    def _send_all(self, submits: list[bytes | None]) -> None:
        """Send on time, reading replies in between; ends when all is answered, or no answer can come."""
        assert self.zero is not None
        dues = [time + self.zero for _, time in self.schedule]
        quiet = quiet_times(dues)
        while self.leaving is None and not self.stop.requested:
            due = dues[self.sent] if self.sent < len(dues) else None
            self._beat()
            if due is not None and now() >= quiet[self.sent]:
                self._hold(due)
                self._submit(self.schedule[self.sent][0], due, submits[self.sent])
            elif (received := self._received()) is not None:
                self._take(*received)
            elif due is None and not self.open:
                return
            else:
                self._wait(None if due is None else quiet[self.sent])
                if now() - self.heard > SILENCE:
                    self.leaving = "the router has not been heard for 3 s"

    def _hold(self, due: int) -> None:
        """Until `due`: the end of it spun, the last ahead of the router. What comes is stamped; what it says waits."""
        while (left := due - self.spin - now()) > 0:
            if not self._came():
                self.line.wait_precisely(left)
        if due - now() > LAST_SPIN:
            with spinning(self.scheduling):
                while due - now() > LAST_SPIN:
                    self._came()
        while now() < due:
            self._came()

    def _received(self) -> tuple[Message, int] | None:
        """The next message, and when it came: stamped before it is looked into."""
        while self.held or self._came():
            data, at = self.held.popleft()
            if (message := self.line.understood(data)) is not None:
                return message, at
        return None

    def _came(self) -> bool:
        """Whether a message is there; then it is stamped, and held."""
        data = self.line.receive_encoded()
        if data is not None:
            self.held.append((data, now()))
        return data is not None

    def _submit(self, id: int, due: int, data: bytes | None) -> None:
        self.sent += 1
        if data is None:
            self.records.write(RequestRecord(self.settings.cell, id, intended=due, detail="too large to send"))
            return
        at = now()
        try:
            self.line.send_encoded(data)
        except PeerSlow as error:
            self.records.write(RequestRecord(self.settings.cell, id, intended=due, detail=str(error)))
            return
        self.last_sent = at
        self.open[id] = Reply(id, due, at)

    def _wait(self, until: int | None) -> None:
        """Until a message comes, a beat is due, or `until`."""
        wake = self.beaten + BEAT if until is None else min(self.beaten + BEAT, until)
        if (left := wake - now()) > 0:
            self.line.wait_precisely(left)

    # --- receiving ---

    def _take(self, message: Message, at: int | None = None) -> None:
        """`at` is when it came, if that was not just now."""
        at = self.heard = now() if at is None else at
        match message:
            case m.Tokens():
                for row in message.rows:
                    self._take_row(row, at)
            case m.Ended():
                self._end(message.id, message.end, message.detail, None)
            case m.Beat():
                self._count_open(message.open, at)
                self._beat(ANSWERED)
            case m.Welcome():
                self.welcome = message
            case m.Tokenized():
                self.tokenized[message.batch] = message
            case m.Start():
                self.zero = self.offset.to_ours(message.zero) if self.offset is not None else message.zero
            case m.Refused():
                self._refused(message)
            case m.Bye():
                self.leaving = f"the router left: {message.reason}"
            case _:
                pass

    def _take_row(self, row: m.Row, at: int) -> None:
        reply = self.open.get(row.id)
        if reply is None:
            return
        reply.take(row, at)
        if row.finish == "cancelled":
            self._end(row.id, "cancelled", "cancelled by the worker", row.finish)
        elif row.finish is not None:
            self._end(row.id, "completed", None, row.finish)

    def _refused(self, refused: m.Refused) -> None:
        if refused.id is not None:
            self._end(refused.id, "rejected", refused.reason, None)
        elif self.zero is None:
            self.leaving = f"the router refused: {refused.reason}"

    def _count_open(self, theirs: int, at: int) -> None:
        """What the router does not have, seconds after it was sent, was lost on the way: nobody will answer it."""
        if theirs > 0 or not self.open or at - self.last_sent < LOST_AFTER:
            self.missing_since = None
        elif self.missing_since is None:
            # Once is not enough: what was read late may have been said before the last request came.
            self.missing_since = at
        elif at - self.missing_since > SECOND:
            for id in [*self.open]:
                self._end(id, "unfinished", "lost on the way: the router does not have it", None)

    def _end(self, id: int, end: str, detail: str | None, finish: str | None) -> None:
        reply = self.open.pop(id, None)
        if reply is not None:
            self.records.write(reply.record(self.settings.cell, end, detail, finish))

    # --- the end ---

    def _part(self) -> str | None:
        whole = self.sent == len(self.schedule) and not self.open
        why = self.leaving or "stopped"
        end = "failed" if self.leaving is not None else "unfinished"
        for id in [*self.open]:
            self._end(id, end, why, None)
        self._keep_clock("after", measure_offset(self.line, self._take))
        self._say(m.Bye("" if whole else why))
        return None if whole else why

    def _keep_clock(self, when: str, offset: Offset | None) -> None:
        s = self.settings
        record = clock_record(s.cell, f"client-{s.index}", when, offset, self.line)
        if record is not None:
            self.records.write(record)

    def _beat(self, since: int = BEAT) -> None:
        at = now()
        if at - self.beaten >= since:
            self.beaten = at
            self._say(m.Beat(self.instance))

    def _say(self, message: Message) -> None:
        """A router that takes nothing has left; its silence will say so."""
        try:
            self.line.send(message)
        except PeerSlow:
            return


def quiet_times(dues: Sequence[int]) -> list[int]:
    """From when on, before each due time, messages are stamped but not looked into: on a machine that has just woken
    up, one can take a millisecond. At most half the time since the request before, so that they are read in the end.
    """
    gaps = [2 * QUIET, *(after - before for before, after in pairwise(dues))]
    return [due - min(QUIET, gap // 2) for due, gap in zip(dues, gaps, strict=False)]


def _some(conversations: Sequence[tuple[ChatTurn, ...]]) -> tuple[tuple[ChatTurn, ...], ...]:
    """As many of the first conversations as one question may hold, one at least."""
    sizes = accumulate(sum(len(turn.content) for turn in turns) for turns in conversations[:TOKENIZE_AT_ONCE])
    return tuple(conversations[: max(1, sum(size <= CHARACTERS_AT_ONCE for size in sizes))])
