"""Services of systemd: what their units say, checked by systemd itself where it is installed."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sordino import cli
from sordino.deploy import services
from sordino.deploy.services import Service
from sordino.errors import UserError

VERIFY = shutil.which("systemd-analyze")


def settings(text: str) -> dict[str, list[str]]:
    """Settings of a unit by section and name, in their order."""
    assert configparser.RawConfigParser(strict=False, interpolation=None).read_string(text) is None
    found: dict[str, list[str]] = {}
    section = ""
    for line in text.splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(f"{section}.{name}", []).append(value)
    return found


@pytest.fixture
def sordino(tmp_path, monkeypatch, capsys):
    """Run a command: its exit code, what it printed, what it complained of."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["sordino", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


def checked(text: str, name: str, folder: Path, user: bool) -> None:
    """Have systemd check a unit, where it is installed."""
    found = settings(text)
    assert {"Unit.Description", "Service.ExecStart", "Install.WantedBy"} <= set(found)
    if VERIFY is None:
        return
    path = folder / f"{name}.service"
    path.write_text(text)
    scope = ["--user"] if user else []
    command = [VERIFY, "verify", *scope, "--man=no", str(path)]
    environment = os.environ | {"XDG_RUNTIME_DIR": str(folder)}
    told = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    about = [line for line in told.stderr.splitlines() if name in line]
    assert (told.returncode, about) == (0, []), told.stderr


@pytest.mark.parametrize("user", [True, False])
def test_units_restart_are_limited_and_write_to_their_own_folders_only(user: bool, tmp_path: Path) -> None:
    folder = tmp_path / "site of 100%"
    folder.mkdir()
    me = None if user else "daemon"
    made = Service(
        name="sordino-site-a",
        about="Sordino site",
        command=["join", str(folder), "--server", "fl.example.org:443"],
        folder=folder,
        writable=[folder, tmp_path / "witness"],
        environment={"HTTPS_PROXY": "http://proxy:3128", "SORDINO": 'a "quoted" $word'},
        environment_file=folder / "service.env",
        ports=[9464],
        user=me,
    )
    found = settings(made.unit())
    assert found["Service.Restart"] == ["on-failure"]
    assert found["Unit.StartLimitIntervalSec"] == ["0"]
    assert found["Service.ProtectSystem"] == ["strict"]
    assert found["Service.StateDirectory"] == ["sordino"]
    assert found["Service.LimitCORE"] == ["0"]
    assert shlex.split(found["Service.ReadWritePaths"][0].replace("%%", "%")) == [
        f"-{folder}",
        f"-{tmp_path / 'witness'}",
    ]
    assert str(Path(sys.prefix).resolve()) in shlex.split(found["Service.ReadOnlyPaths"][0])
    command = [one.replace("%%", "%") for one in shlex.split(found["Service.ExecStart"][0])]
    assert command == [sys.executable, "-P", "-m", "sordino", *made.command]
    assert found["Service.EnvironmentFile"] == [f"-{folder}/service.env".replace("%", "%%")]
    assert ("Service.User" in found) is not user
    if not user:
        assert found["Service.SocketBindAllow"] == ["tcp:9464"]
        assert found["Service.SocketBindDeny"] == ["any"]
        assert found["Service.CapabilityBoundingSet"] == [""]
    checked(made.unit(), made.name, tmp_path, user)


def test_only_a_low_port_needs_a_capability(tmp_path: Path) -> None:
    made = Service(
        "sordino-server-e", "", ["serve"], tmp_path, [tmp_path], ports=[443], user="daemon", interrupted=True
    )
    found = settings(made.unit())
    assert found["Service.AmbientCapabilities"] == found["Service.CapabilityBoundingSet"] == ["CAP_NET_BIND_SERVICE"]
    assert found["Service.KillSignal"] == ["SIGINT"]
    checked(made.unit(), made.name, tmp_path, user=False)


def test_names_that_would_be_read_as_more_than_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot stand in a unit file"):
        Service("a", "two\nExecStart=lines", ["join"], tmp_path, []).unit()
    with pytest.raises(UserError, match="rename the folder"):
        services.service_name("site", "../etc/passwd")


def test_no_service_runs_as_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Root:
        st_uid = 0

    monkeypatch.setattr(Path, "stat", lambda self, **given: Root())
    with pytest.raises(UserError, match="as root"):
        services.owner_of(tmp_path)


def write_rules(site: Path) -> None:
    """Make a site's folder with its rules."""
    site.mkdir()
    (site / "site.toml").write_text(
        'name = "hospital"\ndata = "x.npz"\nunit = "client"\nmax_epsilon = 1.0\nmax_delta = 1e-5\nmin_cohort = 3\n'
        'witness = "../witness"\nmethods = ["dp-fedavg"]\n'
    )


@pytest.mark.parametrize("shown", [(), ("--print",)])
def test_no_unit_is_made_of_what_is_not_there(sordino, tmp_path, shown) -> None:
    """Neither installed nor printed: it could not work."""
    site, server, experiment = tmp_path / "hospital", tmp_path / "server", tmp_path / "e.toml"
    install_site, install_server = ("site", "install", str(site), *shown), ("serve", "install", str(experiment), *shown)
    assert sordino(*install_site) == (2, "", f"Error: There is no site in {site}: `sordino site init` makes one.\n")
    write_rules(site)
    asked = f"Error: Give --server and --ca, or write SORDINO_SERVER=... and SORDINO_CA=... into {site}/service.env.\n"
    assert sordino(*install_site) == (2, "", asked)
    ca = tmp_path / "ca.pem"
    code, out, told = sordino(*install_site, "--server", "fl.example.org:443", "--ca", str(ca))
    assert (code, out) == (2, "")
    assert f"There is no certificate {ca}" in told
    told = "name the TOML file that the server is to run."
    assert sordino(*install_server) == (2, "", f"Error: There is no experiment {experiment}: {told}\n")
    experiment.write_text("")
    told = "`sordino serve init --host NAME` makes one."
    for made in (False, True):  # an empty folder is no server either
        if made:
            server.mkdir()
        code, out, found = sordino(*install_server, "--folder", str(server))
        assert (code, out, found) == (2, "", f"Error: There is no server in {server}: {told}\n")
    assert not (tmp_path / "config").exists()


def test_a_printed_unit_is_that_of_an_installed_service(sordino, tmp_path) -> None:
    site = tmp_path / "hospital"
    write_rules(site)
    (tmp_path / "ca.pem").write_text("the server's")
    asked = ("site", "install", str(site), "--server", "fl.example.org:443", "--ca", str(tmp_path / "ca.pem"))
    code, out, told = sordino(*asked, "--print")
    assert (code, told) == (0, "")
    assert not (tmp_path / "config").exists()
    assert f"join {site} --log-json --server fl.example.org:443" in settings(out)["Service.ExecStart"][0]
    assert Path(json.loads(sordino(*asked, "--json")[1])["unit"]).read_text() == out
    checked(out, "sordino-site-printed", tmp_path, user=True)


def test_units_are_installed_where_systemd_looks_and_told_how_to_start(sordino, tmp_path) -> None:
    site = tmp_path / "hospital"
    write_rules(site)
    asked = ("site", "install", str(site), "--server", "fl.example.org:443", "--ca", str(tmp_path / "ca.pem"))
    (tmp_path / "ca.pem").write_text("the server's")
    code, out, _ = sordino(*asked, "--monitor", "127.0.0.1:9464", "--json")
    found = json.loads(out)
    assert (code, found["name"]) == (0, "sordino-site-hospital")
    text = Path(found["unit"]).read_text()
    assert Path(found["unit"]) == tmp_path / "config" / "systemd" / "user" / "sordino-site-hospital.service"
    assert settings(text)["Service.ReadWritePaths"] == [f"-{site} -{tmp_path / 'witness'}"]
    assert "systemctl --user enable --now sordino-site-hospital" in found["next"]
    (site / "service.env").write_text(f"SORDINO_SERVER=fl.example.org:443\nSORDINO_CA={tmp_path / 'ca.pem'}\n")
    assert sordino("site", "install", str(site))[0] == 0
    assert "is not an address" in sordino("site", "install", str(site), "--server", "nowhere")[2]


def test_a_server_s_service_takes_its_run_up_again(sordino, tmp_path) -> None:
    (tmp_path / "e.toml").write_text("")
    server, store = tmp_path / "server", tmp_path / "store"
    server.mkdir()
    (server / "server.key").write_text("a key")
    code, out, _ = sordino(
        "serve", "install", str(tmp_path / "e.toml"), "--folder", str(server), "--store", str(store), "--print"
    )
    assert code == 0
    assert "--take-up" in settings(out)["Service.ExecStart"][0]
    assert settings(out)["Service.KillSignal"] == ["SIGINT"]
    assert not store.exists(), "nothing is made where a unit is only shown"
