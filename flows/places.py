"""Parameters that several scheduled flows share, as Prefect's form shows and its server checks them."""

from typing import Annotated

from pydantic import Field

# A worker's working folder is not where the deployment was made, and may be gone afterwards.
Place = Annotated[
    str, Field(pattern=r"^(/|[a-z0-9]+://)", description="The run's folder as a whole path (/…), or its fsspec URI.")
]
Minutes = Annotated[
    float, Field(ge=0, description="How long to wait for the run's lock while another process writes the run.")
]
