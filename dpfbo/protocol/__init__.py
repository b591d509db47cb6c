"""Ask and tell: agents and a coordinator in separate processes, which exchange bytes and keep their state on disk."""
