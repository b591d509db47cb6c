"""The ask-and-tell interface: agents and a coordinator in separate processes exchange bytes and keep state on disk."""
