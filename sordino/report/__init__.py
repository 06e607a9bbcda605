"""Reports for people: tables for the terminal, HTML pages, pictures, statements and logs."""
