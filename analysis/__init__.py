import runners  # noqa: F401  (which starts the process again where its locale has ASCII alone)
