"""A site: one client on its own machine, with its own records, rules, ledger and memory."""
