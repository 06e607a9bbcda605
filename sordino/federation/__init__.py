"""The federation: server, clients, messages and rounds, whatever transport carries them."""

__all__ = [
    "blending",
    "client",
    "evaluation",
    "execution",
    "message",
    "purity",
    "replies",
    "rounds",
    "run_state",
    "schedule",
    "server",
    "transcript",
    "transport",
]
