"""Where rollouts are generated and rewards computed: in the run's own process, or by workers of a Ray cluster."""

from pydantic import BaseModel, ConfigDict, Field


class ClusterConfig(BaseModel):
    """A Ray cluster that generates rollouts and scores them. It decides where, never what: no stage depends on it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str | None = Field(
        None,
        min_length=1,
        description="Of a running cluster: auto for the one that this machine belongs to, or ray://HOST:10001; local "
        "starts one in place. null: all is done in the run's own process.",
    )
    engines: int = Field(1, ge=1, description="Engines at once; each generates its share of a round's shards.")
    gpus_per_engine: float = Field(1, ge=0, description="GPUs that each engine gets; 0 on a cluster without any.")
    cpus_per_engine: float = Field(1, ge=0, description="CPUs that Ray counts for each engine.")
    scorers: int = Field(1, ge=1, description="Workers that score at once; each takes its share of a round's shards.")
    gpus_per_scorer: float = Field(0, ge=0, description="GPUs that each of them gets, for rewards that ask a model.")
    cpus_per_scorer: float = Field(1, ge=0, description="CPUs that Ray counts for each of them.")
    retries: int = Field(3, ge=0, description="So often a chunk of shards is begun again when its worker has died.")
