"""Small parts that methods share. No privacy mechanism and no message is hidden in here."""
