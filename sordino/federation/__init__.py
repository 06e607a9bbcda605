"""The federation: server, clients, messages and rounds, whatever transport carries them."""
