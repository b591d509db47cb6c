"""Ask and tell: agents and a coordinator as separate processes, which exchange bytes and keep their state on disk."""
