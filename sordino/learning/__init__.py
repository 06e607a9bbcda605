"""A model is one flat vector; descent for one client, for many stacked ones, and for each record."""
