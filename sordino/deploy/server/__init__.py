"""The server of a deployment, and its way to the sites."""
