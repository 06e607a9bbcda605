"""A server or a site as a service of systemd: the text of its unit file, and where that file goes.

A service may read the whole machine's files but writes only to its own folder, to that of its witness or its store, and
to the state directory that systemd makes for it; its code is read-only. It starts again after a crash, and after a
restart of the machine.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sordino.errors import UserError, writing
from sordino.util.files import write_whole

SYSTEM_UNITS = Path("/etc/systemd/system")
STATE = "sordino"
"""Name of the state directory, below /var/lib or the user's."""
RESTART_SECONDS = 30
STOP_SECONDS = 660
"""Time in which a service that is stopped may finish the message that it works on."""
LARGEST_MEMORY = "80%"
MOST_TASKS = 512
MOST_FILES = 4096
PRIVILEGED_PORTS = 1024
NAME = re.compile(r"[A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Service:
    """A command of Sordino that runs as a service."""

    name: str
    """Name of the unit, without `.service`."""
    about: str
    command: Sequence[str]
    """Arguments of `sordino`."""
    folder: Path
    """Folder in which it runs."""
    writable: Sequence[Path]
    """Folders that it writes to; all else is read-only."""
    environment: Mapping[str, str] = field(default_factory=dict)
    environment_file: Path | None = None
    """File with further variables, such as proxies; it may be missing."""
    ports: Sequence[int] = ()
    """Ports at which it listens."""
    user: str | None = None
    """User as whom a service of the system runs; None for a service of the user who installs it."""
    interrupted: bool = False
    """Whether the command is stopped by SIGINT, as by Ctrl-C, instead of SIGTERM."""

    def unit(self) -> str:
        """Text of the unit file."""
        system = self.user is not None
        interpreter = [sys.executable, "-P", "-m", "sordino"]
        lines = ["[Unit]", f"Description={_plain(self.about)}", "Documentation=man:systemd.service(5)"]
        if system:
            lines += ["Wants=network-online.target", "After=network-online.target"]
        lines += [
            "# Whatever happened, it is tried again: a year is long.",
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            f"ExecStart={' '.join(_quoted(one, '$') for one in [*interpreter, *self.command])}",
            f"WorkingDirectory={_plain(str(self.folder))}",
            *([f"User={self.user}"] if self.user is not None else []),
            *(f"Environment={_quoted(f'{name}={value}')}" for name, value in self.environment.items()),
            *([f"EnvironmentFile=-{_plain(str(self.environment_file))}"] if self.environment_file is not None else []),
            "Restart=on-failure",
            f"RestartSec={RESTART_SECONDS}",
            "KillMode=mixed",
            *(["KillSignal=SIGINT", "SuccessExitStatus=130"] if self.interrupted else []),
            f"TimeoutStopSec={STOP_SECONDS}",
            "",
            "# What it may use. A core file would hold records.",
            "LimitCORE=0",
            f"LimitNOFILE={MOST_FILES}",
            f"TasksMax={MOST_TASKS}",
            f"MemoryMax={LARGEST_MEMORY}",
            "",
            "# What it may write to.",
            f"StateDirectory={STATE}",
            "StateDirectoryMode=0700",
            "UMask=0077",
            "ProtectSystem=strict",
            "ProtectHome=read-only",
            "PrivateTmp=yes",
            f"ReadOnlyPaths={' '.join(_quoted(str(one)) for one in code_folders())}",
            # One that is missing is told of by the service itself, in a clearer sentence than systemd's.
            f"ReadWritePaths={' '.join(_quoted(f'-{one}') for one in self.writable)}",
            "",
            "# What it may do.",
            "NoNewPrivileges=yes",
            "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
            "RestrictRealtime=yes",
            "RestrictSUIDSGID=yes",
            "LockPersonality=yes",
            "SystemCallArchitectures=native",
            "SystemCallFilter=@system-service",
        ]
        if system:
            lines += self._of_system()
        lines += ["", "[Install]", f"WantedBy={'multi-user' if system else 'default'}.target"]
        return "\n".join(lines) + "\n"

    def _of_system(self) -> list[str]:
        """Limits that only the system's manager can set."""
        low = any(port < PRIVILEGED_PORTS for port in self.ports)
        needed = "CAP_NET_BIND_SERVICE" if low else ""
        return [
            f"CapabilityBoundingSet={needed}",
            *([f"AmbientCapabilities={needed}"] if low else []),
            "PrivateDevices=yes",
            "ProtectKernelTunables=yes",
            "ProtectKernelModules=yes",
            "ProtectControlGroups=yes",
            "ProtectClock=yes",
            *(f"SocketBindAllow=tcp:{port}" for port in self.ports),
            "SocketBindDeny=any",
        ]

    def install(self) -> Path:
        """Write the unit file where systemd looks for it, and return its path."""
        path = unit_folder(self.user is not None) / f"{self.name}.service"
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, self.unit())
        return path

    def next_steps(self) -> list[str]:
        """Commands that start an installed service."""
        if self.user is not None:
            return ["systemctl daemon-reload", f"systemctl enable --now {self.name}"]
        return [
            "systemctl --user daemon-reload",
            f"systemctl --user enable --now {self.name}",
            "loginctl enable-linger",
        ]


def unit_folder(system: bool) -> Path:
    """Folder of the unit files of the system, or of this user."""
    if system:
        return SYSTEM_UNITS
    named = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    return (named if named.is_absolute() else Path.home() / ".config") / "systemd" / "user"


def service_name(kind: str, name: str) -> str:
    """Name of the unit of a server or a site (`kind`) that is called `name`."""
    if NAME.fullmatch(name) is None:
        raise UserError(
            f"A service cannot be called {name!r}: rename the folder to letters, digits, dots, dashes and underscores."
        )
    return f"sordino-{kind}-{name}"


def owner_of(folder: Path) -> str:
    """Name of the user to whom a folder belongs: a service of the system runs as that user, never as root."""
    user = folder.stat().st_uid
    if user == 0:
        raise UserError(
            f"{folder} belongs to root, and no service of Sordino runs as root: make a user for it, and give the "
            f"folder to that user (chown -R sordino {folder})."
        )
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError as error:
        raise UserError(f"{folder} belongs to the user number {user}, who has no name on this machine.") from error


def code_folders() -> list[Path]:
    """Folders of the code that a service runs."""
    package = Path(__file__).resolve().parent.parent
    prefix = Path(sys.prefix).resolve()
    return [prefix] if package.is_relative_to(prefix) else [prefix, package]


def _plain(text: str) -> str:
    """Text of a setting that is read to the end of its line."""
    if not text.isprintable():
        raise UserError(f"{text!r} cannot stand in a unit file: use another name.")
    return text.replace("%", "%%")


def _quoted(text: str, also: str = "") -> str:
    """One word of a setting; `also` are characters that stand for something else unless they are doubled."""
    plain = _plain(text).replace("\\", "\\\\").replace('"', '\\"')
    for letter in also:
        plain = plain.replace(letter, 2 * letter)
    return f'"{plain}"' if re.fullmatch(r"[\w@%+=:,./\\$-]+", plain, re.ASCII) is None else plain
