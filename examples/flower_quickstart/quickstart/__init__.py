"""A quickstart app of Flower whose updates leave through Sordino's gate."""
