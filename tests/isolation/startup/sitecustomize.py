"""Python imports this when it starts: processes that tests start watch the user's files too."""

from tests.isolation.watch import watch

watch()
