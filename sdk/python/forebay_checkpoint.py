"""How a program saves its state itself, so that `forebay migrate` can have it go on at another node.

The program must have been started by `forebay run --migratable` or `--cooperative`. It registers one of its
processes, calls `poll` wherever its state is whole, and ends when that says so: it is then started anew, with
the same command, at the other node.

    def save():
        with open("/data/run/state", "wb") as file:
            pickle.dump(model, file)
        return "/data/run/state"

    if forebay_checkpoint.state():
        model = pickle.load(open(forebay_checkpoint.state(), "rb"))
    checkpoint = forebay_checkpoint.Checkpoint(save)
    while model.step():
        if checkpoint.poll():
            sys.exit(forebay_checkpoint.EXIT)

The protocol is in docs/guide/jobs.md. To be called from the main thread, as all that has to do with signals
in Python.
"""

import os
import signal
import socket

#: What a program ends with that has saved its state: whoever started it ends with it, too.
EXIT = 85


class NotMigratable(Exception):
    """The program was not started so that it can be migrated, or its registration is refused."""


class Refuse(Exception):
    """To be raised by `save`: the state can't be saved now, and the program goes on where it is."""


def restarts():
    """How often the program was started from a state that it had saved."""
    return int(os.environ.get("FOREBAY_RESTARTS", "0"))


def state():
    """What was said of the state that it is to begin from; None if it begins at the beginning."""
    return os.environ.get("FOREBAY_STATE") or None


def nodes():
    """The machines that it is to use, its own first; an empty list if nobody says."""
    return [name for name in os.environ.get("FOREBAY_NODES", "").split(",") if name]


class Checkpoint:
    """A registered process. `save` saves the state and returns where it is: one line. If it raises anything,
    the program goes on where it is, and whoever wanted the state is told why. A path is synced, with all that
    is below it; so are files that are open."""

    def __init__(self, save, signum=signal.SIGUSR1):
        path = os.environ.get("FOREBAY_CHECKPOINT")
        if not path:
            raise NotMigratable("not started by `forebay run --migratable` or `--cooperative`")
        self._save = save
        self._wanted = False
        self._owner = os.getpid()
        self._buffer = b""
        # Before it registers: what comes then must find it.
        before = signal.signal(signum, self._on_signal)
        signal.siginterrupt(signum, False)
        self._connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._connection.connect(path)
            self._say(f"register 1 {int(signum)}")
            answer = self._line(True) or "no nobody answers"
        except OSError as error:
            answer = f"no {error}"
        if answer != "ok":
            self.unregister()
            signal.signal(signum, before)
            raise NotMigratable(answer.removeprefix("no "))

    def wanted(self):
        """Whether the state is wanted, for programs whose processes have to agree before they save it."""
        return self._wanted and self._connection is not None and self._owner == os.getpid()

    def poll(self):
        """To be called where the state is whole, as often as one likes: it costs a look at a flag. If the state
        is wanted, it is saved here. True if the program is to end now."""
        if not self.wanted():
            return False
        self._wanted = False
        try:
            asked = self._request()
            if asked is None:
                return False
            self._answer(asked)
            while (line := self._line(True)) is not None:
                if line in (f"end {asked}", f"stay {asked}"):
                    return line.startswith("end")
        except OSError:
            pass
        # Whoever had the task is gone, and so is the task soon.
        self.unregister()
        return False

    def unregister(self):
        """This process is told no more."""
        if self._connection is not None and self._owner == os.getpid():
            self._connection.close()
        self._connection = None

    def _on_signal(self, _number, _frame):
        self._wanted = True

    def _answer(self, asked):
        try:
            said = ("saved", str(self._save() or ""))
        except Exception as error:  # Whatever is in the way, the program goes on.
            said = ("refused", str(error) or type(error).__name__)
        text = said[1].splitlines()[0][:4000] if said[1] else ""
        self._say(f"{said[0]} {asked} {text}")

    def _request(self):
        """Which request there is that was not given up meanwhile."""
        asked = None
        while (line := self._line(False)) is not None:
            what, _, number = line.partition(" ")
            if what == "save":
                asked = number
            elif what == "stay" and number == asked:
                asked = None
        return asked

    def _say(self, line):
        self._connection.sendall(line.encode("utf-8", "surrogateescape") + b"\n")

    def _line(self, wait):
        """The next line; None if there is none, and where it is waited for at the end."""
        while b"\n" not in self._buffer:
            try:
                some = self._connection.recv(8192, 0 if wait else socket.MSG_DONTWAIT)
            except BlockingIOError:
                return None
            if not some:
                if wait:
                    return None
                raise ConnectionResetError("whoever had the task is gone")
            self._buffer += some
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode("utf-8", "surrogateescape")
