"""Protocol between a server and its sites: bytes, keys, secure sums."""

__all__ = ["carrier", "integer_rows", "keys", "roster", "secret_sharing", "secure_sum", "versions", "wire"]
