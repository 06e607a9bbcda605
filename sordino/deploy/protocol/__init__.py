"""Protocol between a server and its sites: bytes, keys, secure sums."""
