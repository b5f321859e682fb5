"""Which stage after which, and the command line."""

from flows import environment

environment.prepare()  # before any module here imports Prefect, MLflow or torch
