"""What we use of Flower beyond its published interface: pinned, so that another version is noticed here."""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import version

import pytest

from sordino.flower import QUIET

PARAMETERS = {
    "flwr.superlink.extensions:get_middleware": (),
    "flwr.superlink.extensions:get_lifespan_contexts": (),
    "flwr.superlink.servicer.fleet.fleet_handlers:push_messages": ("request", "state"),
    "flwr.superlink.servicer.fleet.fleet_handlers:pull_messages": ("request", "state", "store"),
    "flwr.superlink.servicer.runtime.runtime_handlers:push_messages": ("request", "state", "task"),
    "flwr.superlink.servicer.runtime.runtime_handlers:pull_messages": ("request", "state", "task"),
    "flwr.superlink.cli:flower_superlink": (),
    "flwr.cli.build:build_fab_from_files": ("files",),
    "flwr.common.serde:message_to_proto": ("message",),
    "flwr.common.serde:message_from_proto": ("message_proto",),
    "flwr.supernode.node_auth_http_interceptor:NodeAuthHttpInterceptor": ("private_key", "public_key"),
    "flwr.supercore.interceptors:RuntimeTokenHttpInterceptor": ("token",),
    "flwr.supercore.interceptors:RuntimeVersionHttpInterceptor": ("component_name",),
}
METHODS = {
    "flwr.supernode.fleet_http_client:FleetHttpClient": (
        *("ActivateNode", "DeactivateNode", "SendNodeHeartbeat", "PullMessages", "PushMessages"),
    ),
    "flwr.supercore.runtime:RuntimeHttpClient": (
        *("AcquireTask", "PullTaskInput", "PushTaskOutput", "SendTaskHeartbeat", "GetNodes"),
        *("PullMessages", "PushMessages"),
    ),
    "flwr.supercore.control.control_http_client:ControlHttpClient": ("RegisterNode", "StartRun", "ListNodes"),
}
FIELDS = {
    "flwr.proto.fleet_pb2:PushMessagesRequest": {
        *("node", "messages_list", "message_object_trees", "clientapp_runtime_list"),
    },
    "flwr.proto.fleet_pb2:ActivateNodeRequest": {"public_key", "heartbeat_interval"},
    "flwr.proto.runtime_pb2:PullAppMessagesResponse": {"messages_list", "message_object_trees"},
    "flwr.proto.runtime_pb2:PushAppMessagesResponse": {"message_ids", "objects_to_push", "session_id"},
    "flwr.proto.runtime_pb2:AcquireTaskResponse": {"task", "token"},
    "flwr.proto.message_pb2:ObjectTree": {"object_id", "children"},
    "flwr.proto.message_pb2:Message": {"metadata", "content", "error"},
}


def named(text: str) -> object:
    module, _, name = text.partition(":")
    return getattr(importlib.import_module(module), name)


def test_version_is_the_one_that_the_names_are_of():
    assert version("flwr").startswith("1.41.")


@pytest.mark.parametrize("text", PARAMETERS)
def test_functions_take_what_we_give(text):
    found = tuple(name for name in inspect.signature(named(text)).parameters)
    assert found[: len(PARAMETERS[text])] == PARAMETERS[text]


@pytest.mark.parametrize("text", METHODS)
def test_clients_have_the_calls_we_make(text):
    for name in METHODS[text]:
        assert tuple(inspect.signature(getattr(named(text), name)).parameters) == ("self", "request")


@pytest.mark.parametrize("text", FIELDS)
def test_messages_have_the_fields_we_fill_and_read(text):
    assert FIELDS[text] <= set(named(text).DESCRIPTOR.fields_by_name)


def test_superlink_takes_the_options_we_give():
    parser = named("flwr.superlink.cli.flower_superlink:_parse_args_run_superlink")()
    known = {option for action in parser._actions for option in action.option_strings}
    assert {"--isolation", "--enable-supernode-auth", "--host", "--port"} <= known
    assert {"--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certfile"} <= known


def test_superlink_asks_for_middleware_where_we_put_the_guard():
    source = inspect.getsource(importlib.import_module("flwr.superlink.main"))
    assert "*extensions.get_middleware()," in source
    assert source.index("*extensions.get_middleware(),") < source.index("Middleware(ControlAuthentication")


@pytest.mark.parametrize("kind", ["fleet.router", "runtime"])
def test_handlers_are_looked_up_when_they_are_called(kind):
    """So that the ones which we put in their places are the ones that are called."""
    modules = {
        "fleet.router": "flwr.superlink.routers.fleet.router",
        "runtime": "flwr.supercore.routers.runtime.router",
    }
    source = inspect.getsource(importlib.import_module(modules[kind]))
    owner = "fleet_handlers" if kind == "fleet.router" else "handlers"
    assert f"return {owner}.pull_messages(" in source
    assert f"return {owner}.push_messages(" in source


def test_messages_keep_their_contents_and_sessions_can_be_forgotten():
    state = named("flwr.server.superlink.linkstate.in_memory_linkstate:InMemoryLinkState")
    assert tuple(inspect.signature(state.delete_sessions_in_run).parameters) == ("self", "run_id")
    assert "self.message_ins_store[message_id] = message" in inspect.getsource(state.store_message_ins)
    assert "self.message_res_store[message_id] = message" in inspect.getsource(state.store_message_res)


def test_flower_tells_nobody_looks_for_nothing_and_installs_nothing(monkeypatch):
    telemetry = importlib.import_module("flwr.supercore.telemetry")
    update_check = importlib.import_module("flwr.supercore.update_check")
    install = named("flwr.superlink.cli.flower_superlink:_runtime_dependency_install_default")
    monkeypatch.setattr(telemetry.urllib.request, "urlopen", lambda *_, **__: pytest.fail("somebody was told"))
    monkeypatch.setattr(update_check, "_read_flwr_update_check_cache", lambda: pytest.fail("it was looked for"))
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    telemetry = importlib.reload(telemetry)  # the environment is looked at when it is imported
    assert telemetry.create_event(telemetry.EventType.PING, None) == "disabled"
    update_check.warn_if_flwr_update_available()
    assert install() is False
    for name in QUIET:
        monkeypatch.delenv(name)
    assert install() is True, "it is the variable that does it"


def test_superlink_starts_no_process_of_its_own_in_the_mode_we_use():
    lifespan = named("flwr.superlink.cli.flower_superlink:SuperLinkLifespan")
    source = inspect.getsource(lifespan._start_superexec_if_needed)
    assert "if config.isolation != ISOLATION_MODE_SUBPROCESS:\n            return" in source
