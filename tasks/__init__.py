"""One file a stage: the key it is known by, the artifact it leaves, and the Prefect task that makes it."""
